package registry

import (
	"sync/atomic"

	"github.com/cryo-project/cryo/image"
)

// meter adds up what all transfers of an operation have done.
type meter struct {
	what  string
	total int64
	done  atomic.Int64
	tell  image.Progress
}

func newMeter(what string, total int64, tell image.Progress) *meter {
	m := &meter{what: what, total: total, tell: tell}
	m.add(0)
	return m
}

func (m *meter) add(n int64) {
	done := m.done.Add(n)
	if m.tell != nil {
		m.tell(m.what, min(done, m.total), m.total)
	}
}

// tracker counts one blob. Bytes that go over the line again after a failure are not counted twice.
type tracker struct {
	m         *meter
	pos, high int64
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
