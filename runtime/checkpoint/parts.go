package checkpoint

import (
	"context"
	"time"

	"github.com/containerd/log"
)

// parts are how long each part of a checkpoint took, for the shim's log.
type parts struct {
	last   time.Time
	fields log.Fields
}

func newParts() parts { return parts{last: time.Now(), fields: log.Fields{}} }

// end ends a part, which began where the one before it ended. A part that comes more than once is all of its times.
func (p *parts) end(name string) {
	now := time.Now()
	before, _ := p.fields[name].(time.Duration)
	p.fields[name] = before + now.Sub(p.last)
	p.last = now
}

// log writes all of them.
func (p *parts) log(ctx context.Context) {
	log.G(ctx).WithFields(p.fields).Debug("the parts of a checkpoint")
}
