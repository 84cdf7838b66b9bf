package fill

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/lazypages"
	"github.com/cryo-project/cryo/shim/order"
)

// A copy of the test program is a daemon that opens its snapshot when a file appears in the store's directory: it fails where the file says so.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Command {
		if err := daemon(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func daemon() error {
	c, err := newLine(channelDescriptor)
	if err != nil {
		return err
	}
	m, _, err := c.receive()
	if err != nil {
		return err
	}
	for {
		how, err := os.ReadFile(filepath.Join(m.Order.Root, "open"))
		if err == nil && string(how) != "" {
			err := c.send(message{Failed: failure.New(errdefs.ErrDataLoss, "", "%s", how)}, -1)
			c.await()
			return err
		}
		if err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := c.send(message{Ready: true}, -1); err != nil {
		return err
	}
	for {
		m, _, err := c.receive()
		if err != nil {
			return err
		}
		if m.Restored {
			return errors.Join(c.send(message{Taken: true}, -1), c.send(message{Result: &Result{Bytes: 1}}, -1))
		}
	}
}

// criu does what CRIU does at the end of a restore of one process, and fails the test where nobody listens.
func criu(t *testing.T, work string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(work, lazypages.SocketName))
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
			root, work := t.TempDir(), t.TempDir()
			f, err := Start(work, order.Order{Root: root, Images: root})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				f.End()
				<-f.Ended()
			}()
			criu(t, work)
			restored := make(chan error, 1)
			go func() { restored <- f.Restored(t.Context()) }()
			select {
			case err := <-restored:
				t.Fatalf("it does not wait for the snapshot: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			whole := filepath.Join(root, "whole")
			if err := errors.Join(os.WriteFile(whole, []byte(how), 0o600), os.Rename(whole, filepath.Join(root, "open"))); err != nil {
				t.Fatal(err)
			}
			select {
			case err = <-restored:
			case <-time.After(30 * time.Second):
				t.Fatal("it waits for ever")
			}
			if how == "" && err != nil || how != "" && (!errdefs.IsDataLoss(err) || err.Error() != doing+": "+how) {
				t.Errorf("got %v", err)
			}
		})
	}
}
