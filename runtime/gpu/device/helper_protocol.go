package device

import (
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
)

// HelperVersion is that of the protocol. Helper and client come from one build; another version is refused.
const HelperVersion = 3

// maxProcesses and maxPairs bound what one request may name.
const (
	maxProcesses = 1 << 15
	maxPairs     = 256
)

// verb is what a request asks for.
type verb string

const (
	verbFacts      verb = "facts"
	verbStates     verb = "states"
	verbLock       verb = "lock"
	verbCheckpoint verb = "checkpoint"
	verbRestore    verb = "restore"
	verbUnlock     verb = "unlock"
	verbStop       verb = "stop"
	verbYield      verb = "yield"
	verbDisown     verb = "disown"
)

// request is a message to the helper.
type request struct {
	Do      verb         `json:"do"`
	PIDs    []int        `json:"pids,omitempty"`
	Timeout int64        `json:"timeout,omitempty"` // of a lock, milliseconds
	Pairs   []DevicePair `json:"pairs,omitempty"`   // of a restore
	Others  []int        `json:"others,omitempty"`  // of disown: processes that may have been forked from those of pids
}

// answer is a message from the helper; which fields are set is told by the request.
type answer struct {
	Hello    int                  `json:"hello,omitempty"` // the protocol's version, in the first message only
	Facts    *Facts               `json:"facts,omitempty"`
	States   map[int]ProcessState `json:"states,omitempty"`
	Outcomes []Outcome            `json:"outcomes,omitempty"`
	Changed  int                  `json:"changed,omitempty"` // of disown: processes
	Driver   *UnusableError       `json:"driver,omitempty"`
	Error    string               `json:"error,omitempty"`
}

// decodeRequest reads a request and refuses what no client sends.
func decodeRequest(data []byte) (request, error) {
	var r request
	if err := channel.Strict(data, &r); err != nil {
		return request{}, err
	}
	if err := r.check(); err != nil {
		return request{}, fmt.Errorf("%s: %w: %w", r.Do, err, errdefs.ErrInvalidArgument)
	}
	return r, nil
}

func (r request) check() error {
	switch r.Do {
	case verbFacts, verbYield:
		if len(r.PIDs) > 0 {
			return fmt.Errorf("it takes no processes")
		}
	case verbStates, verbLock, verbCheckpoint, verbRestore, verbUnlock, verbStop, verbDisown:
	default:
		return fmt.Errorf("no such request")
	}
	if len(r.PIDs) > maxProcesses || len(r.Others) > maxProcesses || len(r.Pairs) > maxPairs {
		return fmt.Errorf("too many processes or pairs")
	}
	if len(r.Others) > 0 && r.Do != verbDisown {
		return fmt.Errorf("it takes no other processes")
	}
	seen := make(map[int]bool, len(r.PIDs))
	for _, pid := range slices.Concat(r.PIDs, r.Others) {
		if pid <= 0 || seen[pid] {
			return fmt.Errorf("process %d: not an id, or named twice", pid)
		}
		seen[pid] = true
	}
	if (r.Timeout != 0) != (r.Do == verbLock) || r.Timeout < 0 || r.Timeout > maxTimeout.Milliseconds() {
		return fmt.Errorf("timeout of %d ms", r.Timeout)
	}
	if len(r.Pairs) > 0 && r.Do != verbRestore {
		return fmt.Errorf("it takes no pairs")
	}
	for _, p := range r.Pairs {
		for _, uuid := range []string{p.Old, p.New} {
			if _, err := ParseUUID(uuid); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxTimeout is the longest deadline of a lock. Longer ones are taken for this one.
const maxTimeout = 24 * time.Hour

// decodeHelperAnswer reads an answer; decodes nothing that [Outcome] and [ProcessState] do not allow.
func decodeHelperAnswer(data []byte) (answer, error) {
	var a answer
	if err := channel.Strict(data, &a); err != nil {
		return answer{}, err
	}
	for pid, s := range a.States {
		switch s {
		case StateNone, StateRunning, StateLocked, StateCheckpointed, StateFailed:
		default:
			return answer{}, fmt.Errorf("decode message: process %d in state %q: %w", pid, s, errdefs.ErrInvalidArgument)
		}
	}
	return a, nil
}
