package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// reportSocket is where a command waits for news, in a working directory of its own.
const reportSocket = "report"

// News is what a command hears of the restore or checkpoint that it has asked for. In the first, nothing is there.
type News struct {
	// Result: the container runs, or the snapshot was tried. It comes a second time when all memory is in the local store. Of a checkpoint: the snapshot is complete.
	Result   json.RawMessage `json:"result,omitempty"`
	Progress *Progress       `json:"progress,omitempty"`
	Ended    string          `json:"ended,omitempty"` // an activity of Progress whose total is not known
	Waits    *Waits          `json:"waits,omitempty"`
	Warning  string          `json:"warning,omitempty"`
	Saying   string          `json:"saying,omitempty"` // what is being done
	Log      string          `json:"log,omitempty"`    // for debugging
	// Failed may come with a Result: the snapshot is complete, and the rest has failed.
	Failed *failure.Error `json:"failed,omitempty"`
	RunsOn bool           `json:"runsOn,omitempty"` // Failed does no harm to the container
	State  *State         `json:"state,omitempty"`  // after a checkpoint that has failed
	Step   *Reached       `json:"step,omitempty"`   // the process waits for a [Permission]
}

// Step is a point at which a member of a group waits for all the others; see cmd/cryo/GROUPS.md.
type Step string

// The steps of a checkpoint, and of a restore.
const (
	Admitted Step = "admitted" // the container could be frozen now
	Frozen   Step = "frozen"   // it stands still
	Held     Step = "held"     // and no packet of its connections moves
	Complete Step = "complete" // its snapshot is in the registry
	Placed   Step = "placed"   // what a restore needs is here or on its way, and the addresses of the container's network are known
	Restored Step = "restored" // CRIU has restored all, and the container does not run yet
)

// Reached is a step that a member has come to.
type Reached struct {
	Step   Step          `json:"step"`
	Digest digest.Digest `json:"digest,omitempty"` // of the snapshot, from Complete on
	// Manifest is the size of the snapshot's manifest, bytes.
	Manifest int64 `json:"manifest,omitempty"`
	// Addresses are those of the container's network, as 192.0.2.1/24, with the steps Admitted and Placed.
	Addresses []string `json:"addresses,omitempty"`
	// Pod is the container of a pod that is to be a member of a group, with the step Joining.
	Pod *Pod `json:"pod,omitempty"`
}

// Permission is the command's answer to a [Step]: the process may go on. A command that does not want that hangs up.
type Permission struct {
	Step Step `json:"step"`
	// Others are the addresses of the other members, with the permission to go on from Admitted.
	Others []netip.Addr `json:"others,omitempty"`
	// Together is what the container needs to know of its group, with the permission to go on from Placed.
	Together *Together `json:"together,omitempty"`
	// Ref is the snapshot of the container, with the permission to go on from Joining. It is empty if the container is not restored, but started.
	Ref string `json:"ref,omitempty"`
	// Failed calls the process's work off, for this reason. It is no permission.
	Failed *failure.Error `json:"failed,omitempty"`
}

// Progress is how far a part of the work is, bytes; see [image.Progress].
type Progress struct {
	What  string `json:"what"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
}

// Waits says what an activity of Progress waits for while its numbers stand still.
type Waits struct {
	Activity string `json:"activity"`
	For      string `json:"for"`
}

// State is that of a container after a checkpoint that has failed, as a whole or in part.
type State struct {
	Running  bool   `json:"running,omitempty"`
	Lost     bool   `json:"lost,omitempty"`     // it has ended, and should not have
	Snapshot string `json:"snapshot,omitempty"` // digest of the snapshot, which is complete; empty: there is none
}

// Report is the restore process's, or checkpoint process's, end of a connection to a command.
type Report struct {
	mu        sync.Mutex
	to        *channel.Channel
	permitted chan Permission
}

// ListenForReport waits for processes in the directory dir, which [OpenReport] is called with.
func ListenForReport(dir string) (*channel.Listener, error) {
	l, err := channel.Listen(dir, reportSocket)
	if err != nil {
		return nil, fmt.Errorf("wait for a report: %w", err)
	}
	return l, nil
}

// OpenReport reaches the command that waits in the directory dir. It returns an error where none does.
func OpenReport(dir string) (*Report, error) {
	c, _, err := channel.Dial(dir, reportSocket)
	if err != nil {
		return nil, fmt.Errorf("report to the command: %w", err)
	}
	r := &Report{to: c, permitted: make(chan Permission, 1)}
	r.Tell(News{}) // the command knows then that it is heard
	return r, nil
}

// Tell sends news. Progress is dropped where the command does not keep up, and all is where it has ended. nil reports nothing.
func (r *Report) Tell(n News) {
	if r == nil {
		return
	}
	if n.Progress == nil {
		r.mu.Lock()
	} else if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	_ = r.to.SendWithin(lastTime, n) // it may have ended
}

// Left returns when the command has hung up, or has ended, with the reason if the command has named one. News that come later still reach one that has hung up. Until then, it takes permissions for [Report.Pass].
func (r *Report) Left() error {
	for {
		var m Permission
		fds, err := r.to.Receive(&m)
		if err != nil {
			return nil
		}
		channel.Close(fds)
		if m.Failed != nil {
			return m.Failed
		}
		select {
		case r.permitted <- m:
		default: // one that is not asked for
		}
	}
}

// Pass waits until the command permits the process to pass a step. [Report.Left] runs beside it. ctx ends when the command hangs up.
func (r *Report) Pass(ctx context.Context, at Reached) (Permission, error) {
	r.Tell(News{Step: &at})
	for {
		select {
		case permitted := <-r.permitted:
			if permitted.Step == at.Step {
				return permitted, nil
			}
		case <-ctx.Done():
			return Permission{}, context.Cause(ctx)
		}
	}
}

// Close ends the report. nil has none.
func (r *Report) Close() {
	if r != nil {
		_ = r.to.Close()
	}
}
