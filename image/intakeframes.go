package image

import (
	"github.com/cryo-project/cryo/image/format"
)

// intakeKind is what tells intakes apart.
type intakeKind struct {
	what   string // that is taken in, for the progress
	policy format.Compression
	// inMemory is how many pieces may wait in memory, where a quarter of what the kernel can give has room for them.
	inMemory uint64
	// atOnce is how many of so many workers encode while pages come, before [Pack] is called: while processes stand still, taking their pages
	// goes before hashing them.
	atOnce func(workers int) int
	// spills says that what comes faster than it is encoded goes into the spill, so that no process waits for encoding. Else that is so only
	// where no worker encodes at once.
	spills bool
}

var (
	// Small containers wait in memory as a whole: with two cores, no worker encodes before they go on.
	ofProcesses = intakeKind{what: "dump", policy: format.CompressByTwentieth, inMemory: 384, atOnce: SpareCores, spills: true}
	// Device memory waits where it is, mostly while its process runs on. Some cores encode as fast as a disk takes what waits, and take
	// nothing from CRIU, which all wait for, as copying into the page cache and back would.
	ofDevices = intakeKind{what: "devices", policy: format.CompressByQuarter, inMemory: 160, atOnce: HalfCores}
)

// next returns a job with a slot; nil: there are no more. Slots are given one after the other, in the order of each window: so the first of a window that is
// not encoded yet always has one, and a holder of slots behind it only has to wait.
func (in *Intake) next() *frameJob {
	in.feeding.Lock()
	defer in.feeding.Unlock()
	job := in.jobs.take()
	if job == nil {
		return nil
	}
	if job.aside != nil {
		<-job.aside
	}
	if job.slot == nil {
		job.slot, job.err = in.reserve.take(in.ctx) // the context has ended if there is an error
	}
	return job
}

// encode encodes pieces until there are no more. It always takes all of them, and so no window waits for ever. Unless at once, it
// begins when [Pack] waits or the stream cannot go on.
func (in *Intake) encode(atOnce bool) error {
	enc, err := format.NewEncoder(in.o.policy(in.kind.policy))
	if err != nil {
		return err
	}
	defer enc.Close()
	out := make([]byte, 0, format.MaxFrame+64<<10) // what does not compress grows a little
	if !atOnce {
		<-in.hurried
	}
	for job := in.next(); job != nil; job = in.next() {
		if job.err == nil {
			job.err = in.encodeJob(enc, out, job)
		}
		close(job.done)
	}
	return nil
}

func (in *Intake) encodeJob(enc *format.Encoder, out []byte, job *frameJob) error {
	if err := in.ctx.Err(); err != nil {
		return err
	}
	raw := job.slot[:job.frame.Raw]
	if job.home == in.reserve {
		if err := in.spill.takePages(raw, job.kept); err != nil {
			return err
		}
	}
	format.SumFrame(&job.frame, raw)
	if at := in.o.Parent.find(&job.frame); at >= 0 {
		job.parent = at + 1
		return nil
	}
	codec, stored := enc.Encode(out, raw)
	if codec != format.Raw {
		stored = raw[:copy(raw, stored)] // it is shorter; what it was made of is not needed any more
	}
	job.frame.Codec, job.frame.Stored, job.stored = codec, int64(len(stored)), stored
	return nil
}
