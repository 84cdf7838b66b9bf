package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

const (
	runtimeName = "io.containerd.cryo.v1"
	mib         = 64      // memory of the containers
	subject     = "c"     // the container that checkpoints are taken of
	spare       = "spare" // a snapshot in the registry that nobody uses
	stockImage  = "chaos.test/stock:1"
)

// world is what one worker has: two hosts and a registry, a container that runs and snapshots of it. Rounds leave it as it was.
type world struct {
	lab      *lab.Lab
	a, b     *lab.Host // a has the snapshot in its local store, b has none
	registry *lab.Registry
	line     *line
	golden   map[string]string      // references of snapshots by engine, in the registry and in a's store
	gpus     bool                   // hosts have some
	sum      string                 // of the containers' memory
	disks    map[*lab.Host]*disk    // that forget; nil: others
	bare     map[*lab.Host][]string // traces without the container

	engine string                   // of the container
	life   string                   // of the container; "": there is none
	pid    int                      // of its first process
	since  string                   // when that began, see began
	usual  map[string]time.Duration // how long operations take
}

func openWorld(ctx context.Context, dir string, gpus, forgetful bool) (*world, error) {
	w := &world{usual: map[string]time.Duration{}, bare: map[*lab.Host][]string{}, golden: map[string]string{}, gpus: gpus}
	if forgetful {
		w.disks = map[*lab.Host]*disk{}
	}
	var err error
	if w.lab, err = lab.Open(ctx, lab.Options{Dir: dir}); err != nil {
		return nil, err
	}
	if err := w.boot(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) close() error {
	if w.line != nil {
		w.line.close()
	}
	err := w.lab.Close()
	for _, d := range w.disks {
		_ = d.close() // the lab has unmounted it
	}
	return err
}

// mount makes a host's places file systems of their own.
func (w *world) mount(dir string) (*disk, error) {
	for name, place := range places {
		if name == "store" && w.disks != nil {
			place = "disk"
		}
		if err := mountPlace(filepath.Join(dir, place)); err != nil {
			return nil, err
		}
	}
	if w.disks == nil {
		return nil, nil
	}
	return openDisk(w.lab, filepath.Join(dir, "disk"), filepath.Join(dir, places["store"]))
}

func (w *world) boot(ctx context.Context) (err error) {
	if w.registry, err = w.lab.Registry(ctx, "registry", lab.RegistryOptions{}); err != nil {
		return err
	}
	if w.line, err = openLine(w.lab.Address(), w.registry.Address); err != nil {
		return err
	}
	for name, h := range map[string]**lab.Host{"a": &w.a, "b": &w.b} {
		// Before the hosts, which take the mounts there are. The lab unmounts what is left below its directory.
		d, err := w.mount(filepath.Join(w.lab.Dir, name))
		if err != nil {
			return err
		}
		*h, err = w.lab.Host(ctx, name, w.options())
		if d != nil {
			w.disks[*h] = d
		}
		if err != nil {
			return err
		}
		if err := (*h).Import(ctx); err != nil {
			return err
		}
		if w.gpus {
			if err := (*h).ImportGPU(ctx); err != nil {
				return err
			}
		}
	}
	for _, engine := range w.engines() {
		if err := w.furnish(ctx, engine); err != nil {
			return err
		}
	}
	time.Sleep(time.Second) // containerd's garbage goes
	for _, h := range []*lab.Host{w.a, w.b} {
		if w.bare[h], err = trace(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) options() (o lab.HostOptions) {
	if w.gpus {
		o.GPUs = &lab.GPUs{Devices: []lab.GPU{{Minor: 0}, {Minor: 1}}}
	}
	return o
}

func (w *world) engines() []string {
	if w.gpus {
		return []string{"", "driver", "keeper"}
	}
	return []string{""}
}

// furnish takes the snapshots that restores begin with.
func (w *world) furnish(ctx context.Context, engine string) error {
	w.golden[engine] = w.reference("golden" + engine)
	if err := w.start(ctx, engine); err != nil {
		return err
	}
	if err := w.a.Cryo(ctx, "checkpoint", subject, w.golden[engine], "--leave-running", "--push", "--plain-http").Err(); err != nil {
		return err
	}
	if engine == "" {
		if err := w.a.Ctr(ctx, "containers", "checkpoint", "--task", "--rw", "--image", subject, stockImage).Err(); err != nil {
			return err
		}
	}
	if engine == "" {
		if err := w.a.Cryo(ctx, "push", w.golden[engine], w.reference(spare), "--plain-http").Err(); err != nil {
			return err
		}
	}
	return w.remove(ctx, w.a, subject)
}

// rehearse measures how long each operation takes that only takes, and wants all that is wanted of it without any fault.
func (w *world) rehearse(ctx context.Context, only filter) error {
	for _, o := range operations {
		if !only.possibleOf(o) {
			continue
		}
		r := newRound(w, o, choice{Operation: o.name, Fault: none})
		if err := r.run(ctx); err != nil {
			return fmt.Errorf("rehearse %s: %w", o.name, err)
		}
		if len(r.violations) > 0 {
			return &violatedError{fmt.Sprintf("without a fault, %s: VIOLATION: %s\n%s", o.name, strings.Join(r.violations, "\nVIOLATION: "), r.text())}
		}
		w.usual[o.name] = r.result.Elapsed
	}
	return nil
}

// violatedError says that something does not hold though nothing was broken.
type violatedError struct{ text string }

func (e *violatedError) Error() string { return e.text }

// reference goes by way of the line.
func (w *world) reference(name string) string { return w.line.address + "/chaos/" + name + ":1" }

// start has the container run.
func (w *world) start(ctx context.Context, engine string) error {
	if w.life != "" {
		if w.engine == engine {
			return nil
		}
		if err := w.remove(ctx, w.a, subject); err != nil {
			return err
		}
	}
	w.engine = engine
	words := []string{"run", "--detach", "--null-io", "--runtime", runtimeName, "--annotation", "io.cryo.gpu.engine=" + engine, "--device", gpuDevice,
		lab.GPUImageName, subject, "/fake/fakeapp", "--quiet", "--blocks", "3,5,1"}
	if engine == "keeper" { // processes that share memory as well
		words = append(words, "--processes", "2", "--share", "2")
	}
	if engine == "" {
		words = []string{"run", "--detach", "--null-io", "--runtime", runtimeName, lab.ImageName, subject, "workload", "count", "--quiet", "--memory", fmt.Sprint(mib)}
	}
	if err := w.a.Ctr(ctx, words...).Err(); err != nil {
		return err
	}
	a, err := w.a.AwaitAnswer(ctx, subject)
	if err != nil {
		return err
	}
	sum, _ := a.State["sha256"].(string)
	if !a.OK || engine == "" && (sum == "" || w.sum != "" && sum != w.sum) {
		return fmt.Errorf("start a container: its memory is not what is wanted: %+v", a)
	}
	if engine == "" {
		w.sum = sum
	}
	return w.met(ctx, a.Life)
}

// met notes which container runs.
func (w *world) met(ctx context.Context, life string) (err error) {
	w.life = life
	if w.pid, _, err = w.a.Task(ctx, subject); err != nil {
		return err
	}
	w.since = began(w.pid)
	return nil
}

// remove does what a user does to be rid of a container.
func (w *world) remove(ctx context.Context, h *lab.Host, id string) error {
	if h == w.a && id == subject {
		w.life = ""
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	deleted := h.Ctr(ctx, "tasks", "delete", "--force", id) // there may be none
	if r := h.Ctr(ctx, "containers", "delete", id); r.Code != 0 {
		return errors.Join(deleted.Err(), r.Err())
	}
	return nil
}

// offsets are the ends of the logs.
func (w *world) offsets() map[string]int64 {
	ends := map[string]int64{}
	for _, path := range w.logs() {
		if info, err := os.Stat(path); err == nil {
			ends[path] = info.Size()
		}
	}
	return ends
}

func (w *world) logs() []string {
	return []string{w.a.Log(), w.b.Log(), filepath.Join(w.registry.Dir, "registry.log")}
}
