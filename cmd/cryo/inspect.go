package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
)

type inspected struct {
	Reference  string               `json:"reference"`
	Digest     string               `json:"digest"`
	InRegistry bool                 `json:"inRegistry,omitempty"` // alone
	Size       int64                `json:"size"`                 // bytes of all blobs
	Shared     int64                `json:"shared,omitempty"`     // bytes of segments that are its parent's too
	Layers     []ocispec.Descriptor `json:"layers"`
	Index      *index               `json:"index,omitempty"` // that the name stands for in the registry
	// Signatures are those that the local store has, or else the registry.
	Signatures []signature.Signer `json:"signatures"`
	restore.Reviewed
	Config   image.Config      `json:"config"`
	Fits     *bool             `json:"fits,omitempty"`    // with --check
	Findings []host.FitFinding `json:"findings,omitzero"` // likewise; empty if there are none
	Error    *errorReport      `json:"error,omitempty"`
}

// index has an image beside the snapshot.
type index struct {
	ocispec.Descriptor
	Entries []ocispec.Descriptor `json:"entries"`
}

func newInspect(a *app) *cobra.Command {
	var check bool
	var flags lookFlags
	cmd := &cobra.Command{
		Use:   "inspect REF",
		Short: "Show what a snapshot holds and needs",
		Long: `inspect shows a snapshot of the local store or, if that has none of this name, of a registry: its container, its
processes and their memory, on GPUs too, its layers, and who has signed it. It also shows what a host must have
for it, what it asks of a host (see --allow of cryo restore), and what a restore would refuse whatever is
allowed. From a registry only small parts are read, and the image that has the same name there is shown too (see
cryo push). Signatures by keys that [trust] of the configuration does not name are shown unverified.

With --check it compares the snapshot with this host as cryo restore does, and prints each mismatch. The exit
code is 9 if there is one that prevents a restore.`,
		Example: `  cryo inspect app:warm
  cryo inspect app:warm --check
  cryo inspect app:warm --format '{{.config.container.image}}'
  cryo inspect app:warm --json | jq .config.spec`,
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE:              abandonable(func(cmd *cobra.Command, args []string) error { return a.inspect(cmd.Context(), args[0], check, &flags) }),
	}
	a.formatFlag(cmd)
	cmd.Flags().BoolVar(&check, "check", false, "compare the snapshot with this host")
	flags.register(cmd)
	return cmd
}

func (a *app) inspect(ctx context.Context, ref string, check bool, flags *lookFlags) (err error) {
	s, err := a.store()
	if err != nil {
		return err
	}
	f, err := a.look(ctx, s, ref, flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	snapshot, err := image.Open(ctx, f.From, f.Descriptor)
	if err != nil {
		return err
	}
	i := inspected{
		Reference: ref, Digest: f.Descriptor.Digest.String(), InRegistry: f.InRegistry, Size: snapshot.Size(), Shared: snapshot.Shared(),
		Layers: snapshot.Manifest.Layers, Signatures: f.Signers, Config: snapshot.Config,
	}
	if named, entries := f.Index(); named.Digest != "" {
		i.Index = &index{named, entries}
	}
	if i.Reviewed, err = f.Review(ctx, snapshot, trust.Policy{}); err != nil {
		return err
	}
	var misfit error
	if check {
		v, err := f.Check(ctx, snapshot)
		if err != nil {
			return err
		}
		fits := v.Fits()
		i.Fits, i.Findings = &fits, v.Findings
		if err := v.Err(); err != nil {
			misfit = failure.New(failure.ErrMisfit, failure.Hint(err), "%s does not fit this host", ref) // its findings are printed
		}
	}
	i.Error = a.errorReport(ctx, misfit)
	return errors.Join(misfit, a.print(i, func() error { return a.printInspected(i, check) }))
}

func (a *app) printInspected(i inspected, check bool) error {
	if check {
		return a.printVerdict(i)
	}
	c := i.Config
	rows := [][]string{{"Reference:", i.Reference}, {"Digest:", i.Digest}}
	if i.InRegistry {
		rows[0][1] += " (in the registry alone)"
	}
	rows = append(rows, indexRows(i.Index, i.Digest)...)
	rows = append(rows, signerRows(i.Signatures)...)
	rows = append(rows, [][]string{
		{"Created:", c.Created.Local().Format(time.RFC3339) + " (" + age(c.Created) + ")"},
		{"Container:", c.Container.ID + ", namespace " + c.Container.Namespace + ", runtime " + c.Container.Runtime},
		{"Image:", c.Container.Image},
		{"", c.Container.ImageDigest.String()},
		{"Memory:", fmt.Sprintf("%s, of which %s%s zero; %s stored", config.Size(c.Memory.Total), ofDevices(c.Memory), config.Size(c.Memory.Zero), config.Size(c.Memory.Stored))},
	}...)
	if c.Parent != nil {
		rows = append(rows, []string{"Parent:", c.Parent.Digest.String()}, []string{"", fmt.Sprintf("shared with it: %s in %d segments (%s not in use); new: %s",
			config.Size(i.Shared), c.Parent.Segments, config.Size(c.Memory.Unused), config.Size(c.Memory.Stored-i.Shared))})
	}
	rows = append(rows, [][]string{
		{"Size:", fmt.Sprintf("%s in %d layers", config.Size(i.Size), len(i.Layers))},
		{"Frozen:", fmt.Sprintf("%s (%sdump %s, files %s)", seconds(c.Timings.Freeze), savedIn(c.GPU), seconds(c.Timings.Dump), seconds(c.Timings.RootFS))},
		{"Needs:", fmt.Sprintf("%s/%s, pages of %d bytes, cgroup version %d, CRIU %s", c.Host.OS, c.Host.Architecture, c.Host.PageSize, c.Host.CgroupVersion, c.Host.CRIU)},
	}...)
	if c.GPU != nil {
		rows = append(rows, gpuRows(c.GPU)...)
	}
	rows = append(rows, [][]string{
		{"Taken on:", fmt.Sprintf("kernel %s, %s, runc %s", c.Host.Kernel, c.Host.CPUModel, c.Host.Runc)},
		{"Options:", choices(c.Process)},
	}...)
	if err := a.table(rows...); err != nil {
		return err
	}
	a.line("\nProcesses:")
	rows = [][]string{{"  PID", "COMMAND", "THREADS", "MEMORY"}}
	if c.GPU != nil {
		rows[0] = append(rows[0], "OF GPUS")
	}
	for _, p := range c.Processes[:min(len(c.Processes), maxShown)] {
		row := []string{"  " + strconv.Itoa(p.PID), p.Command, strconv.Itoa(p.Threads), config.Size(p.Memory)}
		if c.GPU != nil {
			row = append(row, heldBy(c.GPU, p.PID))
		}
		rows = append(rows, row)
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	if more := len(c.Processes) - maxShown; more > 0 {
		a.line("  and %d more, which --json lists", more)
	}
	if c.GPU != nil {
		for _, left := range save.LeftToDriver(c.GPU) {
			a.line("  %s", left)
		}
		if err := a.printGPUs(c.GPU); err != nil {
			return err
		}
	}
	if err := a.printReviewed(i.Reviewed); err != nil {
		return err
	}
	a.line("\nLayers:")
	rows = [][]string{{"  TITLE", "SIZE", "DIGEST"}}
	for _, l := range i.Layers {
		rows = append(rows, []string{"  " + l.Annotations[ocispec.AnnotationTitle], config.Size(l.Size), l.Digest.String()})
	}
	return a.table(rows...)
}

// indexRows say what else has the snapshot's name.
func indexRows(i *index, snapshot string) (rows [][]string) {
	if i == nil {
		return nil
	}
	rows = append(rows, []string{"Index:", i.Digest.String()})
	for _, e := range i.Entries[:min(len(i.Entries), maxShown)] {
		if p := e.Platform; p != nil && e.Digest.String() != snapshot {
			rows = append(rows, []string{"Runs as:", e.Digest.String() + ", image for " + path.Join(p.OS, p.Architecture, p.Variant)})
		}
	}
	return rows
}

// maxShown is how many processes are shown to people.
const maxShown = 1000

func (a *app) printVerdict(i inspected) error {
	rows := [][]string{}
	for _, f := range i.Findings {
		kind := "warning"
		if f.Fatal {
			kind = "fatal"
		}
		rows = append(rows, []string{kind, f.Rule, f.Problem})
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	if *i.Fits {
		a.line("%s fits this host", i.Reference)
	}
	return nil
}

// choices puts the options of a dump into words.
func choices(o image.Options) string {
	var set []string
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"established TCP connections", o.TCPEstablished}, {"file locks", o.FileLocks},
		{"unix sockets to outside", o.ExternalUnixSockets}, {"terminal", o.Terminal},
	} {
		if flag.set {
			set = append(set, flag.name)
		}
	}
	if len(set) == 0 {
		return "none"
	}
	return strings.Join(set, ", ")
}

// printReviewed prints what a restore would refuse.
func (a *app) printReviewed(r restore.Reviewed) error {
	var rows, never [][]string
	for _, ask := range r.Asks {
		if by := "(rule " + ask.Rule + ")"; ask.Flag == "" {
			never = append(never, []string{"  " + ask.What, by})
		} else {
			rows = append(rows, []string{"  " + ask.Flag, ask.What, by})
		}
	}
	if len(rows) > 0 {
		a.line("\nAsks of a host, and gets with these flags of cryo restore:")
		if err := a.table(rows...); err != nil {
			return err
		}
	}
	if r.Refused != nil {
		never = append(never, []string{"  " + r.Refused.What, "(rule " + r.Refused.Rule + ")"})
	}
	if len(never) == 0 {
		return nil
	}
	a.line("\nRefused by cryo restore, whatever is allowed:")
	return a.table(never...)
}
