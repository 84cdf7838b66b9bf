package restorer

import (
	"github.com/containerd/containerd/api/types"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Command is the argument that makes the cryo program the restore process.
const Command = "restore-process"

// Descriptor is the process's end of the channel.
const Descriptor = 3

// The annotations of a container that ask for a restore.
const (
	Annotation         = "io.cryo.restore"          // names the snapshot
	FallbackAnnotation = "io.cryo.restore.fallback" // what is done where it cannot be restored: fail, or start it afresh
)

// The values of FallbackAnnotation.
const (
	FallbackFail  = "fail"
	FallbackStart = "start"
)

// protocol is the version of the messages. Both programs are of one build, or one of them is refused.
const protocol = 1

// Request says what is to be restored.
type Request struct {
	Protocol  int            `json:"protocol"`
	Ref       string         `json:"ref"`       // as the annotation has it
	ID        string         `json:"id"`        // of the container
	Namespace string         `json:"namespace"` // of containerd
	Address   string         `json:"address"`   // of containerd's socket
	Bundle    string         `json:"bundle"`
	Rootfs    []*types.Mount `json:"rootfs"`
}

// Prepared says where all is that the shim needs to restore the container.
type Prepared struct {
	Digest   string   `json:"digest"` // of the snapshot
	Images   string   `json:"images"` // CRIU's
	Work     string   `json:"work"`   // CRIU's work directory
	Warnings []string `json:"warnings,omitempty"`
}

// Message is what the two processes tell each other. One of its members is there.
type Message struct {
	// The shim's.
	Request *Request `json:"request,omitempty"` // the first
	Running bool     `json:"running,omitempty"` // the container runs
	// The process's answer to the request.
	Prepared *Prepared      `json:"prepared,omitempty"`
	Failed   *failure.Error `json:"failed,omitempty"`
}
