package trust

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReviewCommand is the first argument of a program that is to be the sandbox. The second is the version of the messages that its starter speaks.
const ReviewCommand = "review-images"

// messages is the version of what is said to the sandbox and by it: an update may replace the program between the start of one and of the other.
const messages = "1"

// ReviewMain is the main function of the sandbox, and returns the exit status. spoken is the version of the messages that the caller uses.
func ReviewMain(spoken string) int { return serve(spoken, review) }

// serve confines this process, has what it is sent reviewed, and says what became of it, until there is no process to tell.
func serve(spoken string, review func(reviewOrder, *caller) error) int {
	c := &caller{socket: socketFD}
	if spoken != messages {
		c.must(send(c.socket, unready, fmt.Appendf(nil, "it is of another release than the process that has started it, and speaks version %s, not %.8q: install the programs of one release, and try again", messages, spoken)))
		return 1
	}
	c.buffered = bufio.NewReaderSize(c.socket, pieceSize)
	memory, err := begin()
	if err == nil {
		err = confine()
	}
	if err != nil {
		c.must(send(c.socket, unready, []byte(err.Error())))
		return 1
	}
	c.must(send(c.socket, ready, nil))
	for {
		_, b, err := receive(c.buffered, maxOrder)
		if errors.Is(err, errGone) {
			return 0
		}
		c.must(err)
		var o reviewOrder
		c.must(json.Unmarshal(b, &o))
		c.images = images{memory: memory, files: o.Images, ask: c.read}
		c.must(sendJSON(c.socket, result, outcomeOf(review(o, c))))
	}
}

// begin takes the images over. They may not be there yet.
func begin() (memory []byte, err error) {
	_ = os.WriteFile("/proc/self/comm", []byte("cryo-review"), 0) // for ps; it was exe
	if memory, err = unix.Mmap(imagesFD, 0, maxMemory, unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		return nil, fmt.Errorf("take CRIU images over: %w", err)
	}
	return memory, nil
}

// review is what the sandbox is for.
func review(o reviewOrder, c *caller) error {
	if o.Files {
		if err := Made(&c.images, c, o.Spec); err != nil {
			return err
		}
		return Opened(&c.images, c, o.Spec)
	}
	requests, err := ReviewImages(&c.images, o.Spec, c.exists)
	for _, r := range requests {
		c.must(sendJSON(c.socket, request, wanted{Rule: r.Rule, Grant: r.Grant, What: []byte(r.What)}))
	}
	return err
}

// socket is a descriptor that is read and written as it is, without Go's poller, which would ask for more system calls.
type socket int

func (s socket) Read(b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(int(s), b); err != unix.EINTR {
			break
		}
	}
	if n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

func (s socket) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k, err := unix.Write(int(s), b[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// caller is the process that has the images reviewed.
type caller struct {
	socket   socket
	buffered *bufio.Reader
	images   images
}

var _ Files = (*caller)(nil)

// must ends the sandbox where the caller cannot be talked to.
func (c *caller) must(err error) {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		unix.Exit(1)
	}
}

// ask returns the answer to a question.
func (c *caller) ask(a asked) []byte {
	c.must(sendJSON(c.socket, question, a))
	_, b, err := receive(c.buffered, maxAnswer)
	c.must(err)
	return b
}

func (c *caller) answer(a asked) (n answer) {
	c.must(json.Unmarshal(c.ask(a), &n))
	return n
}

func (c *caller) read(r readMessage) []byte { return c.ask(asked{Read: &r}) }

func (c *caller) exists(path string) bool { return c.answer(asked{Exists: []byte(path)}).Yes }

// Look implements [Files].
func (c *caller) Look(mount int, within string) (kind uint32, target string, err error) {
	a := c.answer(asked{Look: &look{Mount: mount, Within: []byte(within)}})
	if len(a.Err) > 0 {
		err = errors.New(string(a.Err))
	}
	return a.Kind, string(a.Target), err
}

// May implements [Files].
func (c *caller) May(mount int, within string, do Access) (bool, error) {
	a := c.answer(asked{May: &may{Mount: mount, Within: []byte(within), Do: do}})
	if len(a.Err) > 0 {
		return false, errors.New(string(a.Err))
	}
	return a.Yes, nil
}
