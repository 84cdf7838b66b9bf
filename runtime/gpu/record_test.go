package gpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
)

func TestReadRecord(t *testing.T) {
	device := `{"uuid":"` + uuidA + `","memory":1}`
	for _, test := range []struct {
		name, text string
		ok         bool
	}{
		{"full", `{"engine":"driver","driver":"580.1","devices":[` + device + `],"processes":[{"pid":1,"command":"a","memory":1,"devices":["` + uuidA + `"]}],"cdi":["nvidia.com/gpu=0"]}`, true},
		{"of a later version", `{"engine":"driver","later":true}`, true},
		{"another engine", `{"engine":"magic"}`, false},
		{"no engine", `{}`, false},
		{"not JSON", `{`, false},
		{"no UUID", `{"engine":"driver","devices":[{"uuid":"0"}]}`, false},
		{"a GPU twice", `{"engine":"driver","devices":[` + device + `,` + device + `]}`, false},
		{"another's GPU", `{"engine":"driver","processes":[{"pid":1,"devices":["` + uuidA + `"]}]}`, false},
		{"no process", `{"engine":"driver","processes":[{"pid":0}]}`, false},
		{"a process twice", `{"engine":"driver","processes":[{"pid":1},{"pid":1}]}`, false},
		{"less than nothing", `{"engine":"driver","processes":[{"pid":1,"memory":-1}]}`, false},
		{"no CDI device", `{"engine":"driver","cdi":["/etc/passwd"]}`, false},
		{"pieces", keeperRecord(itsLibrary, piece(2<<20, 2<<20)+","+piece(4<<20, 64<<10)), true},
		{"handed nothing over", `{"engine":"keeper","processes":[{"pid":1,"fallback":"no library"}]}`, true},
		{"both", `{"engine":"keeper",` + itsLibrary + `,"devices":[` + device + `],"processes":[{"pid":1,"fallback":"no library","pieces":[` + piece(0, 64<<10) + `]}]}`, false},
		{"pieces that overlap", keeperRecord(itsLibrary, piece(2<<20, 2<<20)+","+piece(3<<20, 64<<10)), false},
		{"pieces out of order", keeperRecord(itsLibrary, piece(4<<20, 2<<20)+","+piece(2<<20, 2<<20)), false},
		{"an empty piece", keeperRecord(itsLibrary, piece(2<<20, 0)), false},
		{"a negative piece", keeperRecord(itsLibrary, piece(2<<20, -(64<<10))), false},
		{"half a page", keeperRecord(itsLibrary, piece(2<<20, 4096)), false},
		{"between pages", keeperRecord(itsLibrary, piece(4096, 2<<20)), false},
		{"beyond all memory", keeperRecord(itsLibrary, piece(1<<57, 64<<10)), false},
		{"a piece on another's GPU", keeperRecord(itsLibrary, strings.ReplaceAll(piece(2<<20, 2<<20), uuidA, uuidB)), false},
		{"too many pieces", keeperRecord(itsLibrary, pieces(record.MaxPieces+1)), false},
		{"pieces without library", keeperRecord(`"later":true`, piece(2<<20, 2<<20)), false},
		{"pieces of the driver", strings.Replace(keeperRecord(itsLibrary, piece(2<<20, 2<<20)), "keeper", "driver", 1), false},
		{"a library without digest", `{"engine":"keeper","library":{"version":"1","digest":"sha256:0"}}`, false},
		{"too long", `{"engine":"driver","x":"` + strings.Repeat("x", maxRecord) + `"}`, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RecordName), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(dir)
		if (err == nil) != test.ok || (r != nil) != test.ok {
			t.Errorf("%s: got %v, %v", test.name, r, err)
		}
		if err != nil && !errors.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("%s: %v is not of kind DataLoss", test.name, err)
		}
	}
	if r, err := ReadRecord(t.TempDir()); r != nil || err != nil {
		t.Errorf("none: got %v, %v", r, err)
	}
}

const itsLibrary = `"library":{"version":"1","digest":"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}`

func piece(address, size int64) string {
	return fmt.Sprintf(`{"address":%d,"size":%d,"device":%q}`, address, size, uuidA)
}

func pieces(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = piece(int64(i)<<16, 64<<10)
	}
	return strings.Join(all, ",")
}

func keeperRecord(itsLibrary, pieces string) string {
	return `{"engine":"keeper",` + itsLibrary + `,"devices":[{"uuid":"` + uuidA + `"}],"processes":[{"pid":1,"pieces":[` + pieces + `]}]}`
}

// FuzzReadRecord: a record may come from a registry.
func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(keeperRecord(itsLibrary, piece(2<<20, 2<<20))))
	f.Add([]byte(`{"engine":"driver","devices":[{"uuid":"` + uuidA + `"}],"edits":{"mounts":[{"destination":"/x"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RecordName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(dir)
		if err != nil {
			return
		}
		again := t.TempDir()
		if err := r.WriteFile(again); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRecord(again); err != nil {
			t.Errorf("what was read cannot be written and read: %v", err)
		}
	})
}
