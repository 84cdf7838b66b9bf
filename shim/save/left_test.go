package save

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image"
)

func TestLeftToDriver(t *testing.T) {
	pieces := []image.GPUPiece{{Size: 1 << 30}}
	g := &image.GPU{Engine: image.KeeperEngine, Processes: []image.GPUProcess{
		{PID: 1, Command: "half", Memory: 2 << 30, Pieces: pieces},
		{PID: 2, Command: "little", Memory: 600 << 20},
		{PID: 3, Command: "pool", Memory: 4 << 30, Pieces: pieces},
		{PID: 4, Command: "sh", Memory: 600 << 20, Fallback: "it was forked"},
	}}
	if got := strings.Join(LeftToDriver(g), "\n"); !strings.HasPrefix(got, "3 (pool) handed over 1.0 GiB of 4.0 GiB of device memory. ") || !strings.HasSuffix(got, "\n4 (sh) went by the driver: it was forked") {
		t.Errorf("%s", got)
	}
	if got := LeftToDriver(nil); got != nil {
		t.Errorf("%q", got)
	}
}
