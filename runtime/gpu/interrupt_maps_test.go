package gpu

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const mapsLine = "7f8a10000000-7f8a10001000 rw-s 00000000 00:01 1034                       /memfd:cryo-interrupt (deleted)\n"

func TestMappings(t *testing.T) {
	page := mapping{start: 0x7f8a10000000, end: 0x7f8a10001000, inode: 1034}
	another := strings.Replace(mapsLine, "1034", "1035", 1)
	var many strings.Builder
	for i := range maxPages + 1 {
		many.WriteString(strings.Replace(mapsLine, "1034", fmt.Sprint(i), 1))
	}
	for _, test := range []struct {
		name, maps string
		want       []mapping
		err        error
	}{
		{name: "nothing"},
		{"one", mapsLine, []mapping{page}, nil},
		{"no end of line", strings.TrimSuffix(mapsLine, "\n"), []mapping{page}, nil},
		{"among others", "55d0-55d1 r-xp 00000000 fe:00 12 /usr/bin/python3\n7ffe-7fff rw-p 00000000 00:00 0 \n" + mapsLine +
			"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n", []mapping{page}, nil},
		{"two", mapsLine + another, []mapping{page, {page.start, page.end, 1035}}, nil},
		{"mapped twice", mapsLine + mapsLine, []mapping{page}, nil},
		{"private", strings.Replace(mapsLine, "rw-s", "rw-p", 1), nil, nil},
		{"read-only", strings.Replace(mapsLine, "rw-s", "r--s", 1), nil, nil},
		{"not its start", strings.Replace(mapsLine, "00000000 ", "00001000 ", 1), nil, nil},
		{"another name", strings.Replace(mapsLine, "interrupt", "interrupted", 1), nil, nil},
		{"a path that ends like it", strings.Replace(mapsLine, "/memfd", "/home/memfd", 1), nil, nil},
		{"a path with a space", strings.Replace(mapsLine, "/memfd", "/home/a /memfd", 1), nil, nil},
		{"no address", strings.Replace(mapsLine, "7f8a10000000-", "", 1), nil, nil},
		{"backwards", strings.Replace(mapsLine, "7f8a10001000", "7f8a10000000", 1), nil, nil},
		{"after a long line", strings.Repeat("x", 5*maxLine) + "\n" + mapsLine, []mapping{page}, nil},
		{"end of a long line", strings.Repeat("x", maxLine) + mapsLine, nil, nil},
		{"too many", many.String(), nil, errTooMany},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, err := mappings(strings.NewReader(test.maps))
			if !errors.Is(err, test.err) {
				t.Fatalf("error %v, want %v", err, test.err)
			}
			if test.err != nil {
				found = nil
			}
			if !slices.Equal(found, test.want) {
				t.Errorf("found %v, want %v", found, test.want)
			}
		})
	}
}

// A process may end while its mappings are read.
func TestMappingsOfEndingProcess(t *testing.T) {
	found, err := mappings(io.MultiReader(strings.NewReader(mapsLine), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(found) != 1 {
		t.Errorf("found %v, error %v", found, err)
	}
}

func FuzzMappings(f *testing.F) {
	f.Add([]byte(mapsLine))
	f.Add([]byte(strings.TrimSpace(mapsLine) + "\n\n" + mapsLine))
	f.Add([]byte("-  \xff " + name))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := mappings(strings.NewReader(string(data)))
		if err != nil && !errors.Is(err, errTooMany) {
			t.Error(err)
		}
		if len(found) > maxPages {
			t.Errorf("%d mappings", len(found))
		}
		for _, m := range found {
			if m.start >= m.end {
				t.Errorf("%v ends before it starts", m)
			}
		}
		if len(found) > 0 && !strings.Contains(string(data), name) {
			t.Errorf("found %v without the name", found)
		}
	})
}
