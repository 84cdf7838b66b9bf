package load

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cryo-project/cryo/shim/order"
)

// TestMain is the daemon, which says nothing, where it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Command {
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestStartCancelled calls a start off while the daemon has said nothing: that ends, and so does the daemon.
func TestStartCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	ended := make(chan error, 1)
	go func() {
		_, err := Start(ctx, order.Order{})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it has not ended")
	}
}
