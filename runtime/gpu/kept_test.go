package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// kept is device memory that was loaded before.
type kept struct {
	w            *world
	info         prewarmed.Info
	files        []*os.File
	used, closed bool
}

func (k *kept) Info() prewarmed.Info { return k.info }
func (k *kept) Files() []*os.File    { return k.files }
func (k *kept) Use(context.Context) {
	k.w.did = append(k.w.did, "use")
	k.used = true
}
func (k *kept) Close() error {
	k.closed = true
	return nil
}

// TestRestoreKept restores processes whose memory was loaded before. What does not fit, or fails, is loaded anew, and what was not used
// goes back.
func TestRestoreKept(t *testing.T) {
	hasten(t)
	const again, lost = "loaded anew", "an error"
	for name, test := range map[string]struct {
		change    func(*prewarmed.Info)
		none      error // instead of the memory
		fail, how string
		always    bool
		free      int64 // by the driver, when it is asked; 0: much
		ends      string
		used      bool
	}{
		"fits":                     {used: true},
		"another device":           {change: func(i *prewarmed.Info) { i.Pieces[0].Device = uuidA }, ends: again},
		"another size":             {change: func(i *prewarmed.Info) { i.Pieces[1].Size *= 2 }, ends: again},
		"fewer pieces":             {change: func(i *prewarmed.Info) { i.Pieces = i.Pieces[1:] }, ends: again},
		"another GPU there":        {change: func(i *prewarmed.Info) { i.Facts.Devices = i.Facts.Devices[:1] }, ends: again},
		"it cannot be had":         {none: os.ErrPermission, ends: again},
		"no room for the rest":     {free: 1 << 20, ends: lost},
		"the driver fails":         {fail: "restore 101", how: "1", ends: lost},
		"attached at second try":   {fail: "attach 101", how: "1", used: true},
		"not attached, but anew":   {fail: "attach 102", how: "thrice", ends: again, used: true},
		"attached, but not as own": {fail: "own 101", how: "1", ends: lost, used: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := snapshot(t)
			w.fail, w.how, w.always = test.fail, test.how, test.always
			c := w.container()
			c.Minors = []int{1}
			k := &kept{w: w, info: prewarmed.Info{Facts: w.facts, Pieces: Pieces(&r.GPU, []driver.Device{{UUID: uuidB}})}}
			k.info.Facts.Devices = slices.Clone(w.facts.Devices)
			for _, content := range []string{"101/0", "101/1", "102/0"} {
				k.files = append(k.files, w.file(content))
			}
			own := k.files
			w.files = nil // of the keeper's
			if test.change != nil {
				test.change(&k.info)
			}
			if test.free > 0 {
				for i := range w.facts.Devices {
					w.facts.Devices[i].Free = test.free
				}
			}
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(writer, "101/0\n101/1\n102/0")
			writer.Close()
			defer reader.Close()
			restore := &Restore{Container: c, Record: *r, Handover: w.handover(), Bring: func() (Source, error) {
				return &snapshotSource{peer: reader}, nil
			}}
			restore.Kept = func(fits func(prewarmed.Info) bool) (Kept, error) {
				if test.none != nil || !fits(k.info) {
					return nil, test.none
				}
				return k, nil
			}
			err = fits(t, restore)
			if err == nil {
				_, err = restore.Load(t.Context())
			}
			if prewarmed := restore.Loaded(0).Prewarmed; err == nil && prewarmed != (test.ends == "") {
				t.Errorf("it says that it was prewarmed: %v", prewarmed)
			}
			restore.Close()
			made := slices.Contains(w.did, "make")
			if (err != nil) != (test.ends == lost) || made != (test.ends == again) || k.used != test.used {
				t.Errorf("got %v, used %v; did %q", err, k.used, w.did)
			}
			var misfit *MisfitError
			if test.free > 0 && !errors.As(err, &misfit) {
				t.Errorf("the reason is %v", err)
			}
			taken := test.change == nil && test.none == nil
			for _, f := range own {
				if _, err := f.Stat(); taken && (!errors.Is(err, os.ErrClosed) || !k.closed) {
					t.Errorf("a piece is left open: %v, closed is %v", err, k.closed)
				}
				f.Close()
			}
			if err == nil {
				w.settled()
				w.whole()
			}
			if i, j := slices.Index(w.did, "use"), slices.IndexFunc(w.did, func(s string) bool { return strings.HasPrefix(s, "attach") }); k.used && i > j {
				t.Errorf("others have the memory when it is attached: %q", w.did)
			}
		})
	}
}
