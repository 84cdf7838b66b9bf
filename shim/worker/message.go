package worker

import (
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// The arguments that make the cryo program the restore process, or the checkpoint process.
const (
	Command           = "restore-process"
	CheckpointCommand = "checkpoint-process"
)

// Descriptor is the process's end of the channel to its starter.
const Descriptor = 3

// CheckpointAnnotation of a container names the repository to which its snapshot goes, with a tag or without.
const CheckpointAnnotation = "io.cryo.checkpoint-to"

// The annotations of a container that has its snapshot taken once, when its program is ready, and sent where CheckpointAnnotation says.
const (
	WhenAnnotation         = "io.cryo.checkpoint-when"          // WhenReady
	ReadyTimeoutAnnotation = "io.cryo.checkpoint-ready-timeout" // how long the program may take, such as 5m; default: ReadyTimeout
)

// WhenReady is the value of WhenAnnotation.
const WhenReady = "ready"

// ReadyTimeout is how long a program may take to be ready, unless another time is given.
const ReadyTimeout = 10 * time.Minute

// The annotations of a container that ask for a restore.
const (
	Annotation         = "io.cryo.restore"          // names the snapshot; Annotation.NAME that of a pod's container
	FallbackAnnotation = "io.cryo.restore.fallback" // what is done if that is known before the container has a task: fail, or start it afresh
	SignalAnnotation   = "io.cryo.restore.signal"   // a signal that the container's init process gets once it runs, such as SIGUSR1
	AsAnnotation       = "io.cryo.restore.as"       // what the restored container is: AsClone or AsMove
	RestartAnnotation  = "io.cryo.restart"          // what is done where a pod's container has ended, or could not be restored, and is started again
)

// The values of FallbackAnnotation. Default: fail, and start where the container's image asks for the restore.
const (
	FallbackFail  = "fail"
	FallbackStart = "start"
)

// The values of AsAnnotation. Default: clone.
const (
	AsClone = "clone" // another may go on from the same snapshot
	AsMove  = "move"  // see [Choices]
)

// The values of RestartAnnotation. Default: cold.
const (
	RestartCold    = "cold"
	RestartRestore = "restore"
)

// Named returns the snapshot that the annotations name for a container of a pod, or for one without a pod, whose name is empty. A container that is called as the end of another
// annotation is has none of its own.
func Named(annotations map[string]string, container string) string {
	if own := Annotation + "." + container; container != "" && own != FallbackAnnotation && own != SignalAnnotation && own != AsAnnotation && annotations[own] != "" {
		return annotations[own]
	}
	return annotations[Annotation]
}

// protocol is the version of the messages. The shim of a pod starts the process of the release that is installed by then, so the process speaks the version before as well,
// but for a checkpoint: in version 7, the checkpoint process asked containerd for a second checkpoint, and its shim met it at a socket. A shim of version 8 that does not know
// [Hold.Together] yet dumps without reporting Held, which the process refuses.
const previous = 7

// Request says what is to be restored, or of what a snapshot is taken.
type Request struct {
	Protocol  int    `json:"protocol"`        // the shim's
	Asked     int    `json:"asked,omitempty"` // the command's; 0: no command asks
	Ref       string `json:"ref"`             // of the snapshot; empty: Image may be a snapshot's runnable one
	ID        string `json:"id"`              // of the container; empty: that which the snapshot's had
	Namespace string `json:"namespace"`       // of containerd
	Address   string `json:"address"`         // of containerd's socket
	// Of the container. Image is its image's name, where Ref is empty.
	Image  string         `json:"image,omitempty"`
	Group  string         `json:"group,omitempty"` // value of GroupAnnotation; empty: the container is restored alone
	Bundle string         `json:"bundle,omitempty"`
	Rootfs []*types.Mount `json:"rootfs,omitempty"`
	// Order is there where a command has made the container for this restore. nil: the container asks, and the host's configuration says what it may have.
	Order *Order `json:"order,omitempty"`
	// Checkpoint is what the checkpoint process is to do; nil: it is a restore.
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
}

// environment is the process's: the command's where a command has asked for this, else the shim's.
func (r Request) environment() []string {
	switch {
	case r.Order != nil:
		return r.Order.Environment
	case r.Checkpoint != nil && r.Checkpoint.Order != nil:
		return r.Checkpoint.Order.Environment
	}
	return os.Environ()
}

// Order is what a command has decided that makes a container of a snapshot.
type Order struct {
	Choices Choices       `json:"choices"`
	Digest  digest.Digest `json:"digest"` // of the snapshot
	Policy  trust.Policy  `json:"policy"` // what it may have of the host
	// Annotations are added to the container's specification for this restore, and are not kept in containerd.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Environment is the command's, in which the process looks for credentials and proxies.
	Environment []string `json:"environment"`
	// Report is the directory of the socket at which the command waits for [News]. The restore is called off when the command hangs up before the container runs.
	Report string `json:"report"`
	// Together is there where the container is a member of a group: it runs only after the command has permitted the step [Restored].
	Together *Together `json:"together,omitempty"`
	// Pool: the container is a member of a pool. It stands still before its first instruction until it is taken; see [Handout].
	Pool bool `json:"pool,omitempty"`
}

// Checkpoint says how a snapshot is taken, and where it goes.
type Checkpoint struct {
	To    string   `json:"to,omitempty"`    // the annotation's value
	Names []string `json:"names,omitempty"` // begin the tag where To has none
	Work  string   `json:"work,omitempty"`  // directory of the client's for CRIU's log and statistics; empty: none
	// ReadyTimeout is how many seconds the program may take to be ready; 0: it is not asked. An order has its own.
	ReadyTimeout float64 `json:"readyTimeout,omitempty"`
	// What CRIU saves only if it is asked to.
	TCPEstablished      bool `json:"tcpEstablished,omitempty"`
	FileLocks           bool `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool `json:"externalUnixSockets,omitempty"`
	// Order is there where a command wants the snapshot. nil: the container's annotation does, and the host's configuration decides whether it may.
	Order *CheckpointOrder `json:"order,omitempty"`
}

// CheckpointOrder is what a command wants, by the flags of cryo checkpoint; see there.
type CheckpointOrder struct {
	Container    string    `json:"container"` // as its user calls it
	Ref          string    `json:"ref"`       // of the snapshot
	LeaveRunning bool      `json:"leaveRunning,omitempty"`
	Remove       bool      `json:"remove,omitempty"` // the command will remove the container
	Parent       string    `json:"parent,omitempty"`
	Compression  string    `json:"compression"`
	SegmentSize  int64     `json:"segmentSize,omitempty"`  // bytes
	ReadyTimeout float64   `json:"readyTimeout,omitempty"` // seconds; 0: the program is not asked whether it is ready
	GPUTimeout   float64   `json:"gpuTimeout,omitempty"`   // seconds
	GPUEngine    string    `json:"gpuEngine,omitempty"`
	Force        []string  `json:"force,omitempty"` // rules of package runtime/gpu that are overridden
	Verify       bool      `json:"verify,omitempty"`
	Push         *Registry `json:"push,omitempty"` // nil: it is not sent
	SnapshotOnly bool      `json:"snapshotOnly,omitempty"`
	Discard      bool      `json:"discard,omitempty"` // the local store does not keep the snapshot
	Key          []byte    `json:"key,omitempty"`     // signs the snapshot; see [signature.PrivateKey.Marshal]
	KeyFile      string    `json:"keyFile,omitempty"` // where Key is from
	Progress     bool      `json:"progress,omitempty"`
	Debug        bool      `json:"debug,omitempty"`
	Steps        bool      `json:"steps,omitempty"` // the container is a member of a group: each [Step] waits for the command's permission
	Environment  []string  `json:"environment"`     // as in [Order]
	Report       string    `json:"report"`          // as in [Order]. Until the snapshot is complete, the checkpoint is called off when the command hangs up
}

// Taken is a snapshot that a registry has.
type Taken struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"` // bytes of all blobs
}

// Choices are what the flags of cryo restore say; see there.
type Choices struct {
	Pull             string   `json:"pull"`             // missing: fetch the snapshot unless it is in the local store; always; or never
	Mounts           []Mount  `json:"mounts,omitempty"` // which are granted by that
	Allow            []string `json:"allow,omitempty"`
	Force            []string `json:"force,omitempty"`     // rules of package host that are overridden
	NetworkNS        string   `json:"networkNS,omitempty"` // path, where the container had one with a path; empty: the same
	Eager            bool     `json:"eager,omitempty"`     // read all memory before the container runs
	PullFirst        bool     `json:"pullFirst,omitempty"` // pull it before
	Move             bool     `json:"move,omitempty"`      // no other container goes on from the snapshot: memory that fork would wipe in a child stays
	RequireSignature bool     `json:"requireSignature,omitempty"`
	Devices          []string `json:"devices,omitempty"` // names of CDI devices
	GPUs             []string `json:"gpus,omitempty"`    // OLD=NEW
	Registry         Registry `json:"registry"`
	Progress         bool     `json:"progress,omitempty"` // a user looks at it
	Debug            bool     `json:"debug,omitempty"`    // the process says what it does
	// Runtime and Snapshotter are containerd's names; empty: as the snapshot's container had them, if they are cryo's and here.
	Runtime     string   `json:"runtime,omitempty"`
	Snapshotter string   `json:"snapshotter,omitempty"`
	Env         []string `json:"env,omitempty"`  // NAME=VALUE, in the container's specification; its programs are told
	Log         string   `json:"log,omitempty"`  // URI of where output goes; empty: the shim keeps some of it
	Wait        bool     `json:"wait,omitempty"` // the command waits until all memory is in the local store
	// Trial is a snapshot in the local store, where it is only tried: what was restored ends before its first instruction, and nothing of it stays. nil: it is to run.
	Trial *ocispec.Descriptor `json:"trial,omitempty"`
}

// Mount gives a bind mount of the container another source. Both are absolute paths.
type Mount struct{ Source, Destination string }

// Registry says how the snapshot's registry is reached; see [registry.Options].
type Registry struct {
	PlainHTTP   bool   `json:"plainHTTP,omitempty"`
	Insecure    bool   `json:"insecure,omitempty"`
	CAFile      string `json:"caFile,omitempty"`
	Username    string `json:"username,omitempty"`
	Password    string `json:"password,omitempty"`
	Concurrency int    `json:"concurrency,omitempty"`
	// Credentials is a file like Docker's config.json; empty: Docker's own.
	Credentials string `json:"credentials,omitempty"`
}

// Prepared has all that the shim needs to restore the container.
type Prepared struct {
	Digest   digest.Digest `json:"digest"` // of the snapshot
	Images   string        `json:"images"` // CRIU's
	Work     string        `json:"work"`   // CRIU's work directory
	Warnings []string      `json:"warnings,omitempty"`
	// Origin is what the snapshot is judged by, which the shim does once more.
	Origin Origin `json:"origin"`
	// Allowed is what the container may have beyond its specification.
	Allowed []string `json:"allowed,omitempty"`
	// Lazy: CRIU's images lack memory, which is filled in while the container runs. Devices: they lack memory of GPUs.
	Lazy    bool   `json:"lazy,omitempty"`
	Devices bool   `json:"devices,omitempty"`
	Root    string `json:"root"` // of the store
	// Changes are what the program learns, without what only the shim knows. nil: unknown.
	Changes *Changes `json:"changes,omitempty"`
	// Hooks are labels of the snapshot's container, see [trust.HookLabels].
	Hooks map[string]string `json:"hooks,omitempty"`
	// Together is there for a member of a group; nil: the container is restored alone.
	Together *Together `json:"together,omitempty"`
	// Etc is the directory where cryo makes the container's files of /etc, such as hosts; see package restore. Its files need not exist.
	Etc string `json:"etc,omitempty"`
}

// Origin says of which snapshot CRIU's images are, and has what it is judged by.
type Origin struct {
	Refs       []string             `json:"refs"` // as in [signature.Judge]
	Digest     digest.Digest        `json:"digest"`
	Signatures []signature.Attached `json:"signatures"` // none that is damaged
}

// Files has the process review what of CRIU's images depends on the container's root file system: see [trust.Sandbox.Files].
type Files struct {
	Spec   *specs.Spec `json:"spec"`   // the container's
	Rootfs string      `json:"rootfs"` // where it is mounted
}

// Fill has the process fill in memory, and comes with its end of a channel on which package worker speaks.
type Fill struct {
	Rate int64 `json:"rate"` // bounds how many bytes a second are filled in that no process waits for. 0: nothing does
}

// Message is what the processes tell each other. One of its members is there.
type Message struct {
	// The shim says first what is wanted.
	Request *Request `json:"request,omitempty"`

	// The shim's.
	Files   *Files      `json:"files,omitempty"`   // the root file system is mounted: may CRIU restore the open files?
	Commit  bool        `json:"commit,omitempty"`  // the container is about to run: may it?
	Fenced  bool        `json:"fenced,omitempty"`  // with Commit: the shim has followed Together, as one of an earlier build does not
	Stands  bool        `json:"stands,omitempty"`  // with Commit: the shim has followed Order.Pool
	Running *gpu.Loaded `json:"running,omitempty"` // it runs
	Fill    *Fill       `json:"fill,omitempty"`
	Load    bool        `json:"load,omitempty"` // load memory of GPUs; with ends of the channel and the connection of which package worker speaks

	// The process's.
	Prepared  *Prepared `json:"prepared,omitempty"`
	Ordinary  bool      `json:"ordinary,omitempty"`  // instead: the container's image is no snapshot's
	Reviewed  bool      `json:"reviewed,omitempty"`  // the answer to Files
	Committed bool      `json:"committed,omitempty"` // the answer to Commit

	// The checkpoint process has the container held, and decides what becomes of it. Its last message has one of Taken and Failed.
	Hold     *Hold               `json:"hold,omitempty"`
	Decision checkpoint.Decision `json:"decision,omitempty"`
	Proceed  bool                `json:"proceed,omitempty"` // the answer to Held: the container may be dumped
	Waits    bool                `json:"waits,omitempty"`   // every few seconds, while it waits for other members of the container's group
	Undo     bool                `json:"undo,omitempty"`    // instead of Proceed or a decision: there will be no snapshot
	Taken    *Taken              `json:"taken,omitempty"`
	Warnings []string            `json:"warnings,omitempty"` // of a checkpoint

	// The shim's, of a container that is held; see [Hold].
	Stream   stream               `json:"stream,omitempty"`  // with the process's end of a connection
	Planned  *record.GPU          `json:"planned,omitempty"` // of the stream precopy: what comes
	Held     *checkpoint.Held     `json:"held,omitempty"`    // of a container that is saved in step with others
	Dumped   *checkpoint.Dumped   `json:"dumped,omitempty"`
	Released *checkpoint.Released `json:"released,omitempty"`
	Ended    bool                 `json:"ended,omitempty"`   // the checkpoint has ended; Failed is why it has failed
	CallOff  bool                 `json:"callOff,omitempty"` // no client waits for the snapshot any more

	// Failed is the process's last message, or its answer. The shim asks with it for the reason of a restore that has failed.
	Failed *failure.Error `json:"failed,omitempty"`
	// files came with the message. They are the receiver's to close.
	files []int
}

// Channel takes the channel that came with the message.
func (m *Message) Channel() (*channel.Channel, error) {
	fd, err := m.take()
	if err != nil {
		return nil, err
	}
	return channel.Open(fd)
}

// File takes a file that came with the message.
func (m *Message) File(name string) (*os.File, error) {
	fd, err := m.take()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// take takes the first descriptor that no process has taken yet.
func (m *Message) take() (int, error) {
	if len(m.files) == 0 {
		return -1, fmt.Errorf("a message came without a descriptor: %w", errdefs.ErrInternal)
	}
	fd := m.files[0]
	m.files = m.files[1:]
	return fd, nil
}
