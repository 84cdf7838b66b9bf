package restore

import (
	"sync"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// OpenDriver has the driver initialised for as long as a restore needs that anew, in processes of the shim's: it takes each of them 0.03 s
// instead of 0.2. It ends with this process, however that ends. nil is none.
type OpenDriver struct {
	client *driver.Client
	ending sync.Once
	over   chan struct{} // closed when it has ended
}

// openTime bounds how long. What begins later takes its time, and nothing else comes of it.
const openTime = 2 * time.Minute

// keepOpen takes a helper over.
func keepOpen(k *driver.Client) *OpenDriver {
	d := &OpenDriver{client: k, over: make(chan struct{})}
	go func() {
		select {
		case <-time.After(openTime):
			d.End()
		case <-d.over:
		}
	}()
	return d
}

// End ends it, and does not wait.
func (d *OpenDriver) End() {
	if d == nil {
		return
	}
	d.ending.Do(func() {
		go func() {
			defer close(d.over)
			_ = d.client.Kill() // it holds nothing
			_ = d.client.Close()
		}()
	})
}

// Close ends it, and waits.
func (d *OpenDriver) Close() {
	if d != nil {
		d.End()
		<-d.over
	}
}
