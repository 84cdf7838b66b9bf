package restorer

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// The arguments that make the cryo program the restore process, or the checkpoint process.
const (
	Command           = "restore-process"
	CheckpointCommand = "checkpoint-process"
)

// Descriptor is the process's end of the channel to who has started it.
const Descriptor = 3

// SocketName is the socket, in the working directory of a process that a command has started, on which the shim reaches it.
const SocketName = "shim.sock"

// CheckpointAnnotation of a container names the repository to which its snapshot goes, with a tag or without.
const CheckpointAnnotation = "io.cryo.checkpoint-to"

// The annotations of a container that ask for a restore.
const (
	Annotation         = "io.cryo.restore"          // names the snapshot; Annotation.NAME that of a pod's container
	FallbackAnnotation = "io.cryo.restore.fallback" // what is done where it cannot be restored: fail, or start it afresh
	SignalAnnotation   = "io.cryo.restore.signal"   // a signal that the container's init process gets once it runs, such as SIGUSR1
	RestartAnnotation  = "io.cryo.restart"          // what is done where a pod's container has ended and is started again
)

// The values of FallbackAnnotation. Default: fail, and start where the container's image asks for the restore.
const (
	FallbackFail  = "fail"
	FallbackStart = "start"
)

// The values of RestartAnnotation. Default: cold.
const (
	RestartCold    = "cold"
	RestartRestore = "restore"
)

// Named gives the snapshot that the annotations name for a container of a pod, or for one without a pod, whose name is empty. A container that is called as the end of another
// annotation is has none of its own.
func Named(annotations map[string]string, container string) string {
	if own := Annotation + "." + container; container != "" && own != FallbackAnnotation && own != SignalAnnotation && annotations[own] != "" {
		return annotations[own]
	}
	return annotations[Annotation]
}

// protocol is the version of the messages. Both programs are of one build, or one of them is refused.
const protocol = 6

// Request says what is to be restored, or of what a snapshot is taken.
type Request struct {
	Protocol  int    `json:"protocol"`
	Ref       string `json:"ref"`       // of the snapshot; empty: Image may be a snapshot's runnable one
	ID        string `json:"id"`        // of the container; empty: that which the snapshot's had
	Namespace string `json:"namespace"` // of containerd
	Address   string `json:"address"`   // of containerd's socket
	// Of a container that exists, whose annotation or image asks.
	Image  string         `json:"image,omitempty"` // its image's name, where Ref is empty
	Bundle string         `json:"bundle,omitempty"`
	Rootfs []*types.Mount `json:"rootfs,omitempty"`
	// Choices are those of who runs cryo restore, which makes the container. nil: the container asks, and the host's configuration says what it may
	// have.
	Choices *Choices `json:"choices,omitempty"`
	// Checkpoint is what the checkpoint process is to do; nil: it is a restore.
	*Checkpoint `json:"checkpoint,omitempty"`
}

// Checkpoint says how a snapshot is taken, and where it goes.
type Checkpoint struct {
	To    string   `json:"to"`             // the annotation's value
	Names []string `json:"names"`          // begin the tag where To has none
	Work  string   `json:"work,omitempty"` // directory of the client's for CRIU's log and statistics; empty: none
	// What CRIU saves only if it is asked to.
	TCPEstablished      bool `json:"tcpEstablished,omitempty"`
	FileLocks           bool `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool `json:"externalUnixSockets,omitempty"`
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
	Force            []string `json:"force,omitempty"`     // rules of package fit that are overridden
	NetworkNS        string   `json:"networkNS,omitempty"` // path, where the container had one with a path; empty: the same
	Eager            bool     `json:"eager,omitempty"`     // read all memory before the container runs
	PullFirst        bool     `json:"pullFirst,omitempty"` // pull it before
	RequireSignature bool     `json:"requireSignature,omitempty"`
	Devices          []string `json:"devices,omitempty"` // names of CDI devices
	GPUs             []string `json:"gpus,omitempty"`    // OLD=NEW
	Registry         Registry `json:"registry"`
	Progress         bool     `json:"progress,omitempty"` // somebody looks at it
	Debug            bool     `json:"debug,omitempty"`    // the process says what it does
	// Runtime and Snapshotter are containerd's names; empty: as the snapshot's container had them, if they are cryo's and here.
	Runtime     string `json:"runtime,omitempty"`
	Snapshotter string `json:"snapshotter,omitempty"`
	Log         string `json:"log,omitempty"`  // URI of where output goes; empty: the shim keeps some of it
	Wait        bool   `json:"wait,omitempty"` // the command waits until all memory is in the local store
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
}

// Origin says of which snapshot CRIU's images are, and has what it is judged by.
type Origin struct {
	Refs       []string             `json:"refs"` // as in [signature.Judge]
	Digest     digest.Digest        `json:"digest"`
	Signatures []signature.Attached `json:"signatures"` // none that is damaged
}

// Fill has the process fill in memory, and comes with its end of a channel on which package fill speaks.
type Fill struct {
	Rate int64 `json:"rate"` // bounds how many bytes a second are filled in that nobody waits for. 0: nothing does
}

// Progress is how far a part of the work is, bytes; see [image.Progress].
type Progress struct {
	What  string `json:"what"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
}

// Message is what the processes tell each other. One of its members is there.
type Message struct {
	// Who starts the process says first what is wanted. A shim that has not started it says for which container it comes, by ID and Namespace.
	Request *Request `json:"request,omitempty"`

	// The shim's.
	Commit  bool        `json:"commit,omitempty"`  // the container is about to run: may it?
	Running *gpu.Loaded `json:"running,omitempty"` // it runs
	Fill    *Fill       `json:"fill,omitempty"`
	Load    bool        `json:"load,omitempty"` // load memory of GPUs; with ends of the channel and the connection of which package load speaks

	// The process's to the command.
	Begun    string          `json:"begun,omitempty"`  // its working directory, by which all is marked that it makes
	Result   json.RawMessage `json:"result,omitempty"` // the container runs; with Choices.Wait again when all memory is in the local store
	Progress *Progress       `json:"progress,omitempty"`
	Log      string          `json:"log,omitempty"`
	Warning  string          `json:"warning,omitempty"` // what its user should know
	Said     string          `json:"said,omitempty"`    // what is being done, for who looks

	// The process's to the shim.
	Prepared  *Prepared `json:"prepared,omitempty"`
	Ordinary  bool      `json:"ordinary,omitempty"`  // instead: the container's image is no snapshot's
	Committed bool      `json:"committed,omitempty"` // the answer to Commit

	// The checkpoint process's only message has one of Taken and Failed.
	Taken    *Taken   `json:"taken,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // of a checkpoint

	// Failed is the process's last message, or its answer. The shim asks with it for the reason of a restore that has failed.
	Failed *failure.Error `json:"failed,omitempty"`
	// Container is that which Failed is about; empty: it is about none. Without Failed: the name of the container that is made.
	Container string `json:"container,omitempty"`
	// RunsOn: Failed does no harm to the container.
	RunsOn bool `json:"runsOn,omitempty"`

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

// take takes the first descriptor that nobody has taken yet.
func (m *Message) take() (int, error) {
	if len(m.files) == 0 {
		return -1, fmt.Errorf("a message came without a descriptor: %w", errdefs.ErrInternal)
	}
	fd := m.files[0]
	m.files = m.files[1:]
	return fd, nil
}
