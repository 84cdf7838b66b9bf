package host

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestCollectLater checks that GOGC is high until the first collection, and then as before.
func TestCollectLater(t *testing.T) {
	const before = 77
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	CollectLater()
	if got := percent(); got != startPercent {
		t.Errorf("at first it is %d", got)
	}
	for deadline := time.Now().Add(10 * time.Second); percent() != before; time.Sleep(time.Millisecond) {
		runtime.GC()
		if time.Now().After(deadline) {
			t.Fatalf("after a collection it is %d", percent())
		}
	}
}
