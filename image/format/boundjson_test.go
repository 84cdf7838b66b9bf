package format

import (
	"encoding/json"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestCheck counts texts, at once and in parts of one byte.
func TestCheck(t *testing.T) {
	l := JSONLimits{Bytes: 100, Values: 5, Objects: 2, Depth: 3}
	for text, want := range map[string]string{
		`{}`:                             "",
		`[1,2,3,4,5]`:                    "",
		`[1,2,3,4,5,6]`:                  "values",
		`["a,,,,,,{{{[[[","\",,,,\\",1]`: "",
		`{"a":{},"b":{}}`:                "objects",
		`[[[1]]]`:                        "",
		`[[],[],[]]`:                     "values",
		`[[[[1]]]]`:                      "levels",
		`[],[],[]`:                       "",
		`"\\",,,,,,`:                     "values",
		strings.Repeat(" ", 101):         "bytes",
	} {
		err := l.Check([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
		_, err = io.ReadAll(l.Reader(io.NopCloser(iotest.OneByteReader(strings.NewReader(text)))))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, read: %v", text, err)
		}
	}
	var v []int
	if err := l.Unmarshal([]byte(`[1,2]`), &v); err != nil || len(v) != 2 {
		t.Errorf("%v, %v", v, err)
	}
	if err := l.Unmarshal([]byte(`[1,2] 3`), &v); err == nil {
		t.Error("something follows, and it is taken")
	}
}

// allocated returns how many bytes do has allocated, and how long it took.
func allocated(do func()) (uint64, time.Duration) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	do()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, took
}

// TestCost: what is refused takes nothing, and what is at the limits no more than a process may.
func TestCost(t *testing.T) {
	text := func(one string, n int) []byte {
		return []byte(`{"manifests":[` + strings.Repeat(one+",", n-1) + one + "]}")
	}
	deep := []byte(strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20))
	for name, l := range map[string]JSONLimits{"manifest": ManifestJSON, "layout": LayoutJSON, "image": ImageJSON, "small": SmallJSON} {
		for what, data := range map[string][]byte{"objects": text("{}", int(l.Bytes/4)), "values": text("0", int(l.Bytes/3)), "depth": deep[:min(int64(len(deep)), l.Bytes)]} {
			var err error
			var i ocispec.Index
			if n, took := allocated(func() { err = l.Unmarshal(data, &i) }); err == nil || n > 1<<20 || took > 10*time.Second {
				t.Errorf("%s, %s: refusing it took %d KiB and %s (%v)", name, what, n>>10, took, err)
			}
		}
		for what, data := range map[string][]byte{"objects": text("{}", min(l.Objects-2, l.Values/2-2)), "values": []byte(`{"annotations":{` + pairs(l.Values-10) + `}}`)} {
			var err error
			var i ocispec.Index
			if n, took := allocated(func() { err = l.Unmarshal(data, &i) }); err != nil || n > 512<<20 || took > 10*time.Second {
				t.Errorf("%s, %s: at the limit it took %d MiB and %s (%v)", name, what, n>>20, took, err)
			}
		}
	}
}

// pairs are n members of an object of texts.
func pairs(n int) string {
	all := make(map[string]string, n)
	for i := range n {
		all[strconv.Itoa(i)] = ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(text), "{"), "}")
}
