package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
)

// rule is the name of the rule by which images are refused whose review did not come to its end.
const rule = "sandbox"

// Images is [trust.Images] in a sandbox, of the images in a directory. Its errors are those, and a [*trust.DamagedError] of the rule "sandbox".
func Images(ctx context.Context, dir string, spec *specs.Spec, p trust.Policy) error {
	if !trust.Reviews {
		return nil
	}
	requests, err := Review(ctx, dir, spec, p)
	if err != nil {
		return err
	}
	return trust.Refuse(requests)
}

// Review is [trust.ReviewImages] in a sandbox.
func Review(ctx context.Context, dir string, spec *specs.Spec, p trust.Policy) ([]trust.Request, error) {
	requests, err := run(ctx, dir, order{Spec: spec}, nil)
	for i := range requests {
		requests[i].Allowed = p.Allows(requests[i].Grant)
	}
	return requests, err
}

// Files is [trust.Deleted] and [trust.Opened] in a sandbox: what of the images depends on the container's root file system, which is mounted at rootfs.
func Files(ctx context.Context, dir, rootfs string, spec *specs.Spec) error {
	files, err := trust.NewLocal(rootfs, spec)
	if err != nil {
		return err
	}
	defer files.Close()
	_, err = run(ctx, dir, order{Spec: spec, Files: true}, files)
	return err
}

// Bounds of a review's time: for itself, and more where it looks through images of file systems in memory.
var (
	patience    = 60 * time.Second
	processor   = 20 * time.Second
	perSecond   = int64(32 << 20) // bytes of such images
	environment = []string{"GOMAXPROCS=2", "GOMEMLIMIT=384MiB", "GOTRACEBACK=single"}
	program     = "/proc/self/exe"
)

// Bounds of what is said to the sandbox, bytes.
const (
	maxOrder  = 64 << 20
	maxAnswer = 1 << 20
)

// run has images reviewed.
func run(ctx context.Context, path string, o order, files *trust.Local) (requests []trust.Request, err error) {
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer dir.Close()
	memory, list, more, err := gather(dir)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	o.Images = list
	longer := time.Duration(more/perSecond) * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience+longer, errSlow)
	defer cancel()
	p, err := start(ctx, memory)
	if err != nil {
		return nil, fmt.Errorf("start the process that reviews CRIU's images: %w", err)
	}
	c := conversation{process: p, dir: dir, files: files, order: o, processor: processor + longer}
	err = c.hold()
	died := p.end()
	if cause := context.Cause(ctx); c.outcome == nil && cause != nil && !errors.Is(cause, errSlow) {
		return nil, cause
	} else if c.outcome == nil && cause != nil {
		err = cause
	}
	var own *ownError
	switch {
	case errors.As(err, &own):
		return nil, own.error
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return nil, &trust.DamagedError{Rule: rule, Err: fmt.Errorf("the process that reviews them ended without an answer: %s", died)}
	case err != nil:
		return nil, &trust.DamagedError{Rule: rule, Err: fmt.Errorf("the process that reviews them: %w", err)}
	}
	return c.requests, c.outcome.error()
}

var errSlow = errors.New("it takes too long")

// ownError is a fault of this process or this host, and not of the images.
type ownError struct{ error }

// process is the sandbox.
type process struct {
	command *exec.Cmd
	socket  *os.File
	said    *firstBytes // on its standard error
	stop    func() bool
}

// start makes the sandbox, which ends with ctx.
func start(ctx context.Context, memory *os.File) (_ *process, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "sandbox")
	defer theirs.Close()
	p := &process{socket: os.NewFile(uintptr(pair[0]), "sandbox"), said: &firstBytes{}}
	p.command = exec.Command(program, Command)
	p.command.Env = environment
	p.command.ExtraFiles = []*os.File{socketFD - 3: theirs, imagesFD - 3: memory}
	p.command.Stderr = p.said
	p.command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP}
	if err := p.command.Start(); err != nil {
		_ = p.socket.Close()
		return nil, err
	}
	p.stop = context.AfterFunc(ctx, func() { _ = p.command.Process.Kill() })
	return p, nil
}

// end kills the sandbox, if it is there still, and says how it ended.
func (p *process) end() string {
	_ = p.command.Process.Kill()
	_ = p.command.Wait() // the shim may have heard of its end elsewhere
	p.stop()
	_ = p.socket.Close()
	how := []string{}
	if s := p.command.ProcessState; s != nil {
		how = append(how, s.String())
	}
	if line, _, _ := strings.Cut(p.said.String(), "\n"); line != "" {
		how = append(how, line)
	}
	return strings.Join(how, ", ")
}

// firstBytes keeps the first of what is written to it.
type firstBytes struct{ bytes.Buffer }

func (f *firstBytes) Write(b []byte) (int, error) {
	const most = 4 << 10
	_, _ = f.Buffer.Write(b[:min(len(b), most-min(most, f.Len()))])
	return len(b), nil
}

// conversation is what is said to the sandbox, and by it.
type conversation struct {
	process   *process
	dir       *os.Root
	files     *trust.Local
	order     order
	processor time.Duration // that it may take
	said      int64         // bytes
	requests  []trust.Request
	outcome   *outcome
	reading   *os.File // an image that is read in pieces
	name      string   // its
}

// hold holds it to its end. An error other than an [*ownError] is the sandbox's fault.
func (c *conversation) hold() error {
	defer func() {
		if c.reading != nil {
			_ = c.reading.Close()
		}
	}()
	// If it ends at once, what it has said tells why.
	_, _ = c.process.socket.Write(binary.BigEndian.AppendUint64(nil, uint64(c.processor/time.Second)))
	from := bufio.NewReader(c.process.socket)
	for ordered := false; c.outcome == nil; {
		k, b, err := receive(from, maxMessage)
		if err != nil {
			return err
		}
		if c.said += int64(len(b)); c.said > maxSaid {
			return errors.New("it says too much")
		}
		switch {
		case k == unready && !ordered:
			return &ownError{fmt.Errorf("confine the process that reviews CRIU's images: %s", trust.OneLine(string(b)))}
		case k == ready && !ordered:
			ordered = true
			err = sendJSON(c.process.socket, toSandbox, c.order)
		case k == question && ordered:
			err = c.reply(b)
		case k == request && ordered:
			err = c.request(b)
		case k == result && ordered:
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
	if !slices.Contains(trust.Grants(), w.Grant) || len(c.requests) >= trust.MaxRequests {
		return fmt.Errorf("it asks for %.40q, or for too much", w.Grant)
	}
	c.requests = append(c.requests, trust.NewRequest(w.Rule, w.Grant, string(w.What)))
	return nil
}

// reply answers a question.
func (c *conversation) reply(b []byte) error {
	var q asked
	if err := decode(b, &q); err != nil {
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
		return send(c.process.socket, toSandbox, piece)
	case c.files == nil:
		return errors.New("it asks for files")
	case len(q.Linked) > 0:
		a.Yes = c.files.Linked(string(q.Linked))
	case q.Look != nil:
		kind, target, err := c.files.Look(q.Look.Mount, string(q.Look.Within))
		if a.Kind, a.Target = kind, []byte(target); err != nil {
			a.Err = []byte(err.Error())
		}
	default:
		return errors.New("it asks for nothing")
	}
	return sendJSON(c.process.socket, toSandbox, a)
}

// piece reads a piece of an image of a file system in memory.
func (c *conversation) piece(name string, at int64) ([]byte, error) {
	if !trust.Unpacked(name) || at < 0 {
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
