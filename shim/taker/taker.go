package taker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/restorer"
)

// Command is the argument that makes the cryo program the checkpoint process.
const Command = "checkpoint-process"

// Annotation of a container names the repository to which its snapshot goes, with a tag or without.
const Annotation = "io.cryo.checkpoint-to"

// protocol is the version of the messages. Both programs are of one build, or one of them is refused.
const protocol = 1

// Request says of what a snapshot is taken.
type Request struct {
	Protocol  int    `json:"protocol"`
	To        string `json:"to"`        // the annotation's value
	ID        string `json:"id"`        // of the container
	Namespace string `json:"namespace"` // of containerd
	Address   string `json:"address"`   // of containerd's socket
	// Names begin the tag where To has none.
	Names []string `json:"names"`
	// Work is a directory of the client's for CRIU's log and statistics; empty: none.
	Work string `json:"work,omitempty"`
	// What CRIU saves only if it is asked to.
	TCPEstablished      bool `json:"tcpEstablished,omitempty"`
	FileLocks           bool `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool `json:"externalUnixSockets,omitempty"`
}

// Snapshot is one that a registry has.
type Snapshot struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"` // bytes of all blobs
}

// answer is the process's. One of Snapshot and Failed is there.
type answer struct {
	Snapshot *Snapshot      `json:"snapshot,omitempty"`
	Failed   *failure.Error `json:"failed,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

// endTime is how long the process may take to undo what it did. The shim itself undoes a checkpoint whose process was killed.
const endTime = time.Minute

// Take has a snapshot taken and sent, and waits for that. If ctx ends before, it is undone.
func Take(ctx context.Context, r Request) (_ *Snapshot, warnings []string, err error) {
	own, command, ended, err := restorer.Spawn(Command)
	if err != nil {
		return nil, nil, fmt.Errorf("start the checkpoint process: %w", err)
	}
	defer end(own, command, ended)
	defer context.AfterFunc(ctx, func() { _ = own.HangUp() })()
	r.Protocol = protocol
	var a answer
	if err = own.Send(r); err == nil {
		var fds []int
		fds, err = own.Receive(&a)
		channel.Close(fds) // it sends none
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err != nil:
		return nil, nil, failure.New(errdefs.ErrAborted, "try again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)",
			"the checkpoint process has died: %v", err)
	case a.Failed != nil:
		return nil, a.Warnings, a.Failed
	case a.Snapshot == nil:
		return nil, a.Warnings, fmt.Errorf("the checkpoint process has answered nothing: %w", errdefs.ErrInternal)
	}
	return a.Snapshot, a.Warnings, nil
}

func end(own *channel.Channel, command *exec.Cmd, ended <-chan struct{}) {
	_ = own.Close()
	select {
	case <-ended:
	case <-time.After(endTime):
		_ = command.Process.Kill() // it may have ended
		<-ended
	}
}

// errGone is why a snapshot is not taken that nobody waits for.
var errGone = fmt.Errorf("who has asked for the checkpoint does not wait for it any more: %w", context.Canceled)

// Serve takes the request on the process's descriptor, has it done, and answers. The context that it gives ends when nobody waits for the answer.
func Serve(ctx context.Context, descriptor int, do func(context.Context, Request) (*Snapshot, []string, error)) error {
	c, err := channel.Open(descriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	var r Request
	fds, err := c.Receive(&r)
	channel.Close(fds)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		var nothing any
		fds, _ := c.Receive(&nothing) // it says no more
		channel.Close(fds)
		cancel(errGone)
	}()
	var a answer
	if r.Protocol != protocol {
		err = failure.New(errdefs.ErrFailedPrecondition, "install both of one version, and start the container again", "the shim's program and cryo are of different versions")
	} else {
		a.Snapshot, a.Warnings, err = do(ctx, r)
	}
	if err != nil {
		a = answer{Failed: failure.Of(err), Warnings: a.Warnings}
	}
	return errors.Join(err, c.Send(a))
}
