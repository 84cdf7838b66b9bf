package registry

import (
	"sync/atomic"

	"github.com/cryo-project/cryo/image"
)

// Counts are what operations have moved. They may be read at any time.
type Counts struct {
	moved, there, repeated atomic.Int64
}

func (c *Counts) add(moved, there, repeated int64) {
	if c != nil {
		c.moved.Add(moved)
		c.there.Add(there)
		c.repeated.Add(repeated)
	}
}

// Moved is how many bytes of blobs went over the line, those that went again included.
func (c *Counts) Moved() int64 { return c.moved.Load() }

// There is how many bytes of blobs did not have to: they were there already.
func (c *Counts) There() int64 { return c.there.Load() }

// Repeated is how many requests were made again.
func (c *Counts) Repeated() int64 { return c.repeated.Load() }

// meter adds up what all transfers of an operation have done.
type meter struct {
	what   string
	total  atomic.Int64 // 0: not known yet
	done   atomic.Int64
	tell   image.Progress
	counts *Counts
}

func newMeter(what string, total int64, o Options) *meter {
	m := &meter{what: what, tell: o.Progress, counts: o.Counts}
	m.expect(total)
	return m
}

// expect says how much there is to be done.
func (m *meter) expect(total int64) {
	m.total.Store(total)
	if total > 0 {
		m.add(0)
	}
}

func (m *meter) add(n int64) {
	done := m.done.Add(n)
	if m.tell == nil {
		return
	}
	total := m.total.Load()
	if total > 0 {
		done = min(done, total)
	}
	m.tell(m.what, done, total)
}

// tracker counts one blob. Bytes that go over the line again after a failure are not counted twice.
type tracker struct {
	m         *meter
	pos, high int64
}

// moved says that bytes went over the line.
func (t *tracker) moved(n int64) {
	t.m.counts.add(n, 0, 0)
	t.add(n)
}

func (t *tracker) add(n int64) {
	t.pos += n
	if t.pos > t.high {
		t.m.add(t.pos - t.high)
		t.high = t.pos
	}
}

// seek says where the transfer goes on.
func (t *tracker) seek(pos int64) {
	t.pos = 0
	t.add(pos)
}

// there says that bytes need not go over the line.
func (t *tracker) there(n int64) { t.m.counts.add(0, n, 0) }

// have says that all of a blob need not go over the line.
func (t *tracker) have(size int64) {
	t.there(size)
	t.seek(size)
}

// again says that a request is made once more.
func (t *tracker) again() { t.m.counts.add(0, 0, 1) }
