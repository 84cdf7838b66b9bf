package checkpoint

import (
	"time"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Previous is the version before [Newest] of the conversation between the cryo command and the shim. A container may be run by the shim of another release than the
// command's, so both speak both. In version 4 the shim sends the error of a checkpoint as a message; since version 5 it is only in the file ([Leave]).
//
// The command greets with the newest version that it speaks, and with the oldest. A shim of a build before that of this rule refuses all but its own version: the command
// then asks again, and greets with Previous alone.
const Previous = 4

// socketName is the socket on which the command listens, in CRIU's work directory. It being there is what makes
// a checkpoint a held one.
const socketName = "cryo.sock"

// Decision is what becomes of a container that is dumped and frozen.
type Decision string

// The decisions there are.
const (
	Resume Decision = "resume" // it runs on
	Kill   Decision = "kill"   // it ends
)

// Options are what the command asks of the shim beyond what containerd's request has fields for. A shim that does not know
// one passes over it.
type Options struct {
	// GPUTimeout, in seconds, is how long processes may take to finish their work on GPUs; 0: as configured.
	GPUTimeout float64 `json:"gpuTimeout,omitempty"`
	// Force names rules of package gpu that are overridden; "all" is every one.
	Force []string `json:"force,omitempty"`
	// Pages tells that the command takes CRIU's pages over a connection of their own: see [Conversation.Pages]. Without it, CRIU writes them to files.
	Pages bool `json:"pages,omitempty"`
	// Devices tells that the command takes device memory over a connection of its own: see [Conversation.Devices]. Without it,
	// all device memory goes into the memory of the processes.
	Devices bool `json:"devices,omitempty"`
	// LeaveRunning tells that the command will have the container run on: a copy of device memory comes when it does. It is advisory.
	LeaveRunning bool `json:"leaveRunning,omitempty"`
	// KeeperOnly has the shim refuse a checkpoint, before anything is done, in which all device memory of a process would go into its
	// own memory.
	KeeperOnly bool `json:"keeperOnly,omitempty"`
}

// Dumped is what the shim tells when the container is dumped; it is frozen then.
type Dumped struct {
	Frozen      time.Time `json:"frozen"`                // since when it stands still
	LockSeconds float64   `json:"lockSeconds,omitempty"` // of which its GPUs finished their work
	SaveSeconds float64   `json:"saveSeconds,omitempty"` // of which device memory was moved into memory
	DumpSeconds float64   `json:"dumpSeconds"`           // of which runc and CRIU
	// Devices tells that device memory comes over a connection of its own, which the shim has made before it says so. There is
	// no snapshot without all of it.
	Devices bool `json:"devices,omitempty"`
	// DevicesPending tells that what comes is a copy: the container may be resumed before all has come. Without it, the container
	// stands still until then, and the command decides afterwards.
	DevicesPending bool `json:"devicesPending,omitempty"`
}

// Released is what the shim tells last. Where the container has gone on, containerd's call ends later: when the shim has observed it for a moment, and all device memory has come.
type Released struct {
	FreezeSeconds float64 `json:"freezeSeconds"`         // how long the container stood still
	LoadSeconds   float64 `json:"loadSeconds,omitempty"` // of which device memory was moved back
	Killed        bool    `json:"killed"`
	// DevicesPending tells that the container runs and its device memory still comes.
	DevicesPending bool `json:"devicesPending,omitempty"`
}

// stream is what a connection is for that the shim makes. The command's end comes with the message.
type stream string

// The streams there are.
const (
	pagesStream   stream = "pages"   // CRIU's, of the dump
	devicesStream stream = "devices" // device memory, of the type SOCK_SEQPACKET: see package gpu/ring
)

// message is one of the conversation: the command greets, the shim answers dumped, the command decides, the shim
// answers released. Either side may hang up instead, the shim when it has left the reason ([Leave]). Until it has answered dumped, the shim makes connections.
type message struct {
	Version int `json:"version,omitempty"` // the newest that the command speaks
	Oldest  int `json:"oldest,omitempty"`  // that it speaks; 0: Version alone
	Options
	Stream   stream    `json:"stream,omitempty"`
	Dumped   *Dumped   `json:"dumped,omitempty"`
	Decision Decision  `json:"decision,omitempty"`
	Released *Released `json:"released,omitempty"`
	// Failed is how version 4 ends without the message that is waited for.
	Failed *failure.Error `json:"failed,omitempty"`
}
