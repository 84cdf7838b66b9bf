package worker

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/fill"
)

// server opens its snapshot when it is told how: it fails where that is not empty.
type server struct{ how chan string }

func (server) PID() int { return os.Getpid() }

func (s server) Fill(other *os.File, _ int64) error {
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		return err
	}
	own, err := channel.Open(fd)
	if err != nil {
		return err
	}
	c := link{own}
	go func() {
		defer c.Close()
		if how := <-s.how; how != "" {
			_ = c.Send(message{Failed: failure.New(errdefs.ErrDataLoss, "", "%s", how)})
			c.await()
			return
		}
		_ = c.Send(message{Ready: true})
		for {
			m, _, err := c.receive()
			if err != nil {
				return
			}
			if m.Restored {
				_ = c.Send(message{Taken: true})
				_ = c.Send(message{Result: &FillResult{Bytes: 1}})
				return
			}
		}
	}()
	return nil
}

// fakeCRIU does what CRIU does at the end of a restore of one process, and fails the test where nobody listens.
func fakeCRIU(t *testing.T, work string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(work, fill.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	number := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	_, err = c.Write(number(1))
	if err == nil {
		_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(null.Fd())), nil)
	}
	if err == nil {
		_, err = c.Write(number(0x52535446))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStartBesideCRIU: CRIU does not wait for the snapshot to be opened, and the restore does: what is wrong with it ends that.
func TestStartBesideCRIU(t *testing.T) {
	for name, how := range map[string]string{"opened": "", "damaged": "it is cut short"} {
		t.Run(name, func(t *testing.T) {
			work, s := t.TempDir(), server{make(chan string)}
			f, err := StartFilling(work, s, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				f.End()
				<-f.Ended()
			}()
			fakeCRIU(t, work)
			restored := make(chan error, 1)
			go func() { restored <- f.Restored(t.Context()) }()
			select {
			case err := <-restored:
				t.Fatalf("it does not wait for the snapshot: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			s.how <- how
			select {
			case err = <-restored:
			case <-time.After(30 * time.Second):
				t.Fatal("it waits for ever")
			}
			if how == "" && err != nil || how != "" && (!errdefs.IsDataLoss(err) || err.Error() != fillDoing+": "+how) {
				t.Errorf("got %v", err)
			}
		})
	}
}
