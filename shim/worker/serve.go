package worker

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// Conversation is the restore process's end of what it says with the shim. What it says it never waits for, unless it closes.
type Conversation struct {
	channel *channel.Channel
	heard   chan Message  // closed when the other has ended
	queue   chan Message  // to be sent
	over    chan struct{} // closed when nothing more is to come
	sent    chan struct{} // closed when all is sent
}

// maxQueue is how many messages may wait to be sent.
const maxQueue = 10

// converse begins to listen and to send.
func converse(c *channel.Channel) *Conversation {
	v := &Conversation{channel: c, heard: make(chan Message), queue: make(chan Message, maxQueue), over: make(chan struct{}), sent: make(chan struct{})}
	go v.send()
	return v
}

// Serve takes the first message on the process's descriptor, which says what is to be done.
func Serve(descriptor int) (*Conversation, Request, error) {
	c, err := channel.Open(descriptor)
	if err != nil {
		return nil, Request{}, err
	}
	m, err := firstMessage(c)
	if err != nil {
		return nil, Request{}, errors.Join(err, c.Close())
	}
	v := converse(c)
	if r := m.Request; r != nil && (r.Protocol == protocol || r.Protocol == previous && r.Checkpoint == nil) && (r.Asked == 0 || r.Asked == protocol) {
		return v, *r, nil
	}
	refused := failure.New(errdefs.ErrFailedPrecondition, "install the programs of one release; a pod that runs since before an upgrade has the shim of that time: make it anew",
		"the programs that ask for this and %s are of different versions", program)
	v.Tell(Message{Failed: refused})
	v.Close()
	return nil, Request{}, refused
}

func firstMessage(c *channel.Channel) (m Message, err error) {
	m.files, err = c.Receive(&m)
	if m.Fill == nil && !m.Load && m.Stream == "" {
		channel.Close(m.files) // none are sent
		m.files = nil
	}
	return m, err
}

// Hear has gone called when the other has ended. It is called once, before anything is heard.
func (v *Conversation) Hear(gone func()) {
	go func() {
		defer close(v.heard)
		defer gone()
		for {
			m, err := firstMessage(v.channel)
			if err != nil {
				return
			}
			v.heard <- m
		}
	}()
}

// Next returns the next message; false: the other has ended.
func (v *Conversation) Next(ctx context.Context) (m Message, ok bool, err error) {
	select {
	case m, ok = <-v.heard:
		return m, ok, nil
	case <-ctx.Done():
		return m, true, context.Cause(ctx)
	}
}

// Tell sends a message as soon as the other takes it.
func (v *Conversation) Tell(m Message) {
	select {
	case v.queue <- m:
	case <-v.sent:
	}
}

// send sends what is told.
func (v *Conversation) send() {
	defer close(v.sent)
	for {
		var m Message
		select {
		case m = <-v.queue:
		case <-v.over:
			select {
			case m = <-v.queue:
			default:
				return
			}
		}
		_ = v.channel.Send(m) // a peer that has ended does not hear it, and that is heard
	}
}

// lastTime is how long the other may take to hear what was told last.
const lastTime = 10 * time.Second

// Close ends the conversation when all that was told is heard.
func (v *Conversation) Close() {
	close(v.over)
	select {
	case <-v.sent:
	case <-time.After(lastTime):
	}
	_ = v.channel.Close()
}
