package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/node"
)

// defaultListen is where cryo node serves metrics: for this machine alone.
const defaultListen = "127.0.0.1:9464"

func newNode(a *app) *cobra.Command {
	var o node.Options
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Serve one machine: keep snapshots prewarmed, count checkpoints and restores, tell Kubernetes",
		Long: `node is a service, one for each machine: as a systemd unit, or in Kubernetes as a DaemonSet (contrib/kubernetes).
It keeps prewarmed what the file of --prewarm lists. It removes what is not listed any more, unless others have
prewarmed it. The file may change at any time. What cannot be fetched is tried again.

    [budget]                 # in MiB; 0: [prewarm] in the configuration, which wins where it is smaller
    disk = 102400            # what was fetched
    gpu = 40960              # device memory on each GPU

    [[snapshot]]             # in order of importance: if a budget is too small for all, the first are kept
    ref = "registry.example.com/snapshots/llm:ready"
    gpu = true               # its device memory is kept loaded, as with cryo prewarm --gpu
    devices = ["nvidia.com/gpu=0"]

[restore.policy] in the configuration says which repositories are allowed, with which credentials, and [trust]
which keys must have signed what is there, unless [trust.repositories] has the repository as "unsigned". A tag is
looked up in the registry once: name digests, or a new tag for a new snapshot.

--listen serves /metrics for Prometheus and /healthz. With --node-name, Kubernetes is told: until the service
ends, the node has the labels io.cryo.runtime=true, ready.io.cryo/DIGEST for each snapshot that is ready (the
first 32 digits of its digest), and io.cryo/cpu and io.cryo/driver, which say what fits. A pod gets an event
when a container of it was restored, or started cold, and why. The service also takes part in the checkpoints and
restores of groups of pods (CheckpointGroup, contrib/kubernetes) for the pods of its node.

SIGTERM ends the service; what is prewarmed stays. With --json, each line that it prints is a JSON document.`,
		Example: `  cryo node -n k8s.io --prewarm /etc/cryo/prewarm.toml
  cryo node -n k8s.io --prewarm /etc/cryo/prewarm.toml --node-name $(hostname) --kubeconfig /etc/kubernetes/kubelet.conf
  curl -s http://127.0.0.1:9464/metrics | grep cryo_cold_starts_total`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Kubeconfig != "" && o.Node == "" {
				return misused(cmd.CommandPath(), "--kubeconfig is for --node-name")
			}
			if o.Config, err = a.config(); err != nil {
				return err
			}
			o.Address, o.Connect = a.address, a.connect
			lines := &entries{out: a.stdout, json: a.json}
			o.Log = lines.print
			o.Groups = func(ctx context.Context, client dynamic.Interface) { a.serveGroups(ctx, client, o.Node, o.Log) }
			return node.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.File, "prewarm", "", "TOML `file` that lists what is kept prewarmed")
	f.StringVar(&o.Listen, "listen", defaultListen, "HOST:PORT or unix:PATH for /metrics and /healthz; empty: none")
	f.StringVar(&o.Node, "node-name", "", "this machine's node in Kubernetes, which is told (default: Kubernetes is not)")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` that says how to reach Kubernetes (default: the pod's service account)")
	cmd.AddCommand(newNodeInstall(a))
	return cmd
}

// entries prints what a service does, a line each.
type entries struct {
	mu   sync.Mutex // held for a line
	out  io.Writer
	json bool
}

func (l *entries) print(e node.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.json {
		line := struct {
			Time time.Time `json:"time"`
			node.Entry
			Error string `json:"error,omitempty"`
			Hint  string `json:"hint,omitempty"`
		}{Time: time.Now(), Entry: e}
		if e.Err != nil {
			line.Error, line.Hint = e.Err.Error(), failure.Hint(e.Err)
		}
		_ = json.NewEncoder(l.out).Encode(line) // the reader has gone
		return
	}
	text := e.What
	if e.Container != "" {
		text = "container " + e.Container + " " + text
	}
	if e.Reference != "" {
		text += " (" + store.Familiar(e.Reference) + ")"
	}
	if e.Seconds > 0 {
		text += " in " + seconds(e.Seconds)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
		if hint := hintOf(e.Err); hint != "" {
			text += "; hint: " + hint
		}
	}
	if e.Again > 0 {
		text += fmt.Sprintf("; again in %s", seconds(e.Again))
	}
	fmt.Fprintln(l.out, format("%s", text))
}
