package trust

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// rule is the name of the rule by which images are refused whose review did not come to its end.
const rule = "sandbox"

// Bounds of a review's time: for itself, and more where it looks through images of file systems in memory.
var (
	patience  = 60 * time.Second
	perSecond = int64(32 << 20) // bytes of such images
)

// Sandbox is a process that reviews the images of one directory. It may be opened before they are there. One review may be made at a time.
type Sandbox struct {
	path    string
	memory  *os.File // what is read of the images
	command *exec.Cmd
	socket  *os.File
	from    *bufio.Reader
	stderr  *firstBytes

	confined bool   // it has said so
	images   []file // nil until they were gathered
	more     int64  // bytes of images of file systems in memory
	ended    func() string
}

// OpenSandbox starts the process from a program that calls [ReviewMain] for [ReviewCommand]. It does not wait until that is confined: what goes wrong with that, a review says.
func OpenSandbox(program, dir string) (_ *Sandbox, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the process that reviews CRIU's images: %w", err)
		}
	}()
	fd, err := unix.MemfdCreate("images", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	s := &Sandbox{path: dir, memory: os.NewFile(uintptr(fd), "images"), stderr: &firstBytes{}}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a socket: %w", err), s.memory.Close())
	}
	theirs := os.NewFile(uintptr(pair[1]), "sandbox")
	defer theirs.Close()
	s.socket = os.NewFile(uintptr(pair[0]), "sandbox")
	s.from = bufio.NewReader(s.socket)
	s.command = exec.Command(program, ReviewCommand, messages)
	s.command.Env = []string{"GOMAXPROCS=2", "GOMEMLIMIT=384MiB", "GOTRACEBACK=single"}
	s.command.ExtraFiles = []*os.File{socketFD - 3: theirs, imagesFD - 3: s.memory}
	s.command.Stderr = s.stderr
	// What a terminal interrupts is this process, which then says why the review ends.
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP}
	if err := s.command.Start(); err != nil {
		return nil, errors.Join(err, s.socket.Close(), s.memory.Close())
	}
	s.ended = sync.OnceValue(s.end)
	return s, nil
}

// Close ends the process, and does not wait for its end. A nil one is closed.
func (s *Sandbox) Close() error {
	if s != nil {
		_ = s.command.Process.Kill()
		go s.ended()
	}
	return nil
}

// end kills the process, if it is there still, and says how it ended.
func (s *Sandbox) end() string {
	_ = s.command.Process.Kill()
	_ = s.command.Wait() // the shim may have heard of its end elsewhere
	_ = s.socket.Close()
	_ = s.memory.Close()
	how := []string{}
	if state := s.command.ProcessState; state != nil {
		how = append(how, state.String())
	}
	if line, _, _ := strings.Cut(s.stderr.String(), "\n"); line != "" {
		how = append(how, line)
	}
	return strings.Join(how, ", ")
}

// Images returns an error if [Sandbox.Review] does, or, of kind PermissionDenied, if the images ask for what the policy does not allow.
func (s *Sandbox) Images(ctx context.Context, spec *specs.Spec, p Policy) error {
	if !Reviews {
		return nil
	}
	requests, err := s.Review(ctx, spec, p)
	if err != nil {
		return err
	}
	return Refuse(requests)
}

// Review is [ReviewImages] in the sandbox. Its errors are those, and a [*DamagedError] of the rule "sandbox".
func (s *Sandbox) Review(ctx context.Context, spec *specs.Spec, p Policy) ([]Request, error) {
	requests, err := s.run(ctx, reviewOrder{Spec: spec}, nil)
	return p.Judge(requests), err
}

// Files is [Made] and [Opened] in the sandbox: what of the images depends on the container's root file system, which is mounted at rootfs.
func (s *Sandbox) Files(ctx context.Context, rootfs string, spec *specs.Spec) error {
	files, err := NewLocal(rootfs, spec)
	if err != nil {
		return err
	}
	defer files.Close()
	_, err = s.run(ctx, reviewOrder{Spec: spec, Files: true}, files)
	return err
}

// Bounds of what is said to the sandbox, bytes.
const (
	maxOrder  = 64 << 20
	maxAnswer = 1 << 20
)

// run has images reviewed.
func (s *Sandbox) run(ctx context.Context, o reviewOrder, files *Local) (requests []Request, err error) {
	dir, err := os.OpenRoot(s.path)
	if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer dir.Close()
	if s.images == nil {
		if s.images, s.more, err = gather(s.memory, dir); err != nil {
			return nil, fmt.Errorf("read CRIU images: %w", err)
		}
	}
	o.Images = s.images
	slow := fmt.Errorf("it takes longer than %s", patience+time.Duration(s.more/perSecond)*time.Second)
	limited, cancel := context.WithTimeoutCause(ctx, patience+time.Duration(s.more/perSecond)*time.Second, slow)
	defer cancel()
	defer context.AfterFunc(limited, func() { _ = s.command.Process.Kill() })()
	c := conversation{sandbox: s, dir: dir, files: files, order: o}
	err = c.hold()
	if err == nil {
		return c.requests, c.outcome.error()
	}
	how := s.ended()
	var own *ownError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &own):
		return nil, own.error
	case limited.Err() != nil:
		err = slow
	case errors.Is(err, errGone):
		err = fmt.Errorf("it ended without an answer: %s", how)
	}
	return nil, &DamagedError{Rule: rule, Err: fmt.Errorf("the process that reviews them: %w", err)}
}

// errGone says that the sandbox has ended.
var errGone = errors.New("it has ended")

// ownError is a fault of this process or this host, and not of the images.
type ownError struct{ error }

// firstBytes keeps the first of what is written to it.
type firstBytes struct{ bytes.Buffer }

func (f *firstBytes) Write(b []byte) (int, error) {
	const most = 4 << 10
	_, _ = f.Buffer.Write(b[:min(len(b), most-min(most, f.Len()))])
	return len(b), nil
}

// conversation is what is said to the sandbox, and by it.
type conversation struct {
	sandbox  *Sandbox
	dir      *os.Root
	files    *Local
	order    reviewOrder
	said     int64 // bytes
	requests []Request
	outcome  *outcome
	reading  *os.File // an image that is read in pieces
	name     string   // its
}

// hold holds it to its end. An error other than an [*ownError] is the sandbox's fault.
func (c *conversation) hold() error {
	defer func() {
		if c.reading != nil {
			_ = c.reading.Close()
		}
	}()
	if err := sendJSON(c.sandbox.socket, toSandbox, c.order); err != nil && !errors.Is(err, errGone) { // what it has said before it ended tells more
		return &ownError{fmt.Errorf("tell the process that reviews CRIU's images what they are: %w", err)}
	}
	for c.outcome == nil {
		k, b, err := receive(c.sandbox.from, maxMessage)
		if err != nil {
			return err
		}
		if k != question {
			c.said += int64(len(b))
		}
		if c.said > maxSaid || k == question && len(b) > maxQuestion {
			return errors.New("it says too much")
		}
		switch {
		case k == ready && !c.sandbox.confined:
			c.sandbox.confined = true
		case k == unready && !c.sandbox.confined:
			return &ownError{fmt.Errorf("confine the process that reviews CRIU's images: %s", OneLine(string(b)))}
		case k == question && c.sandbox.confined:
			err = c.reply(b)
		case k == request && c.sandbox.confined:
			err = c.request(b)
		case k == result && c.sandbox.confined:
			err = decode(b, &c.outcome)
			if err == nil && c.outcome == nil {
				err = errors.New("it says nothing")
			}
		default:
			err = fmt.Errorf("a message of kind %d", k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decode reads what the sandbox has said.
func decode(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("it says what it cannot mean: %w", err)
	}
	return nil
}

// request takes something that the images ask for.
func (c *conversation) request(b []byte) error {
	var w wanted
	if err := decode(b, &w); err != nil {
		return err
	}
	if !slices.Contains(Grants(), w.Grant) || len(c.requests) >= MaxRequests {
		return fmt.Errorf("it asks for %.40q, or for too much", w.Grant)
	}
	c.requests = append(c.requests, NewRequest(w.Rule, w.Grant, string(w.What)))
	return nil
}

// reply answers a question.
func (c *conversation) reply(b []byte) error {
	var q asked
	err := decode(b, &q)
	if err != nil {
		return err
	}
	var a answer
	switch {
	case len(q.Exists) > 0:
		_, err := os.Stat(string(q.Exists))
		a.Yes = err == nil
	case q.Read != nil:
		piece, err := c.piece(string(q.Read.Name), q.Read.At)
		if err != nil {
			return err
		}
		return send(c.sandbox.socket, toSandbox, piece)
	case c.files == nil:
		return errors.New("it asks for files")
	case q.Look != nil:
		kind, target, err := c.files.Look(q.Look.Mount, string(q.Look.Within))
		if a.Kind, a.Target = kind, []byte(target); err != nil {
			a.Err = []byte(err.Error())
		}
	case q.May != nil:
		if a.Yes, err = c.files.May(q.May.Mount, string(q.May.Within), q.May.Do); err != nil {
			a.Err = []byte(err.Error())
		}
	default:
		return errors.New("it asks for nothing")
	}
	return sendJSON(c.sandbox.socket, toSandbox, a)
}

// piece reads a piece of an image of a file system in memory.
func (c *conversation) piece(name string, at int64) ([]byte, error) {
	if !Unpacked(name) || at < 0 {
		return nil, fmt.Errorf("it asks for %.80q", name)
	}
	if c.name != name {
		f, err := openImage(c.dir, name)
		if err != nil {
			return nil, &ownError{fmt.Errorf("read CRIU images: %w", err)}
		}
		if c.reading != nil {
			_ = c.reading.Close()
		}
		c.reading, c.name = f, name
	}
	b := make([]byte, pieceSize)
	n, err := c.reading.ReadAt(b, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, &ownError{fmt.Errorf("read CRIU images: %w", err)}
	}
	return b[:n], nil
}
