package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/cryo-project/cryo/image/record"
	"golang.org/x/sys/unix"
)

func FuzzKeeperRequest(f *testing.F) {
	for _, seed := range []string{
		`{"do":"open","version":1,"ring":{"Slots":4,"SlotBytes":4096},"devices":["GPU-00000001-0000-4000-8000-00000000000a"]}`,
		`{"do":"hold","pieces":[{"device":"GPU-00000001-0000-4000-8000-00000000000a","size":2097152}]}`,
		`{"do":"make","pieces":[{"device":"GPU-1","size":2097152}]}`, `{"do":"room","spare":-1}`, `{"do":"send"}`, `{"do":"let go"}`, `{"do":"room"} {}`, `[]`, ``,
	} {
		f.Add([]byte(seed), 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, files int) {
		r, err := DecodeKeeperRequest(data, files)
		if err != nil {
			return
		}
		for _, p := range r.Pieces {
			if check(p) != nil {
				t.Errorf("let through %q", data)
			}
		}
		if r.Do == VerbHold && files != len(r.Pieces) || r.Spare < 0 || len(r.Pieces) > Batch {
			t.Errorf("let through %q with %d", data, files)
		}
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeKeeperRequest(line, files); err != nil || !reflect.DeepEqual(again, r) && !bytes.Contains(data, []byte("[]")) {
			t.Errorf("%q became %+v, %v", line, again, err)
		}
	})
}

func FuzzKeeperAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"done":true}`, `{"done":true,"room":true}`, `{"done":true,"error":{"call":{"call":"cuMemMap","code":1,"name":"n"},"doing":"map: "}}`,
		`{"done":true,"error":{"reason":"r","kind":"invalid","hint":"h"}}`, `{"done":true,"error":{"driver":{"fault":"old","message":"m"}}}`, `{}`, ``,
	} {
		f.Add([]byte(seed), 0)
	}
	r := KeeperRequest{Do: VerbMake, Pieces: []record.GPUPiece{{Device: "GPU-00000001-0000-4000-8000-00000000000a", Size: 2 * mib}}}
	f.Fuzz(func(t *testing.T, data []byte, files int) {
		a, err := decodeKeeperAnswer(data, r, files)
		if err != nil {
			return
		}
		if (files == 1) != (a.Done && a.Error == nil) {
			t.Errorf("let through %q with %d", data, files)
		}
		if a.Error != nil {
			if err := a.Error.err(); err == nil || err.Error() == "never" {
				t.Errorf("%q is %v", data, err)
			}
		}
	})
}

// TestRefusedAtOnce: the client sends no request that the keeper would refuse.
func TestRefusedAtOnce(t *testing.T) {
	h := newHost(t)
	c, pieces := h.made(2, 2)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	null.Close()
	for name, p := range map[string]record.GPUPiece{
		"no device":                    {Device: "GPU-9", Size: 2 * mib},
		"no size":                      {Device: h.Devices[0]},
		"half a page":                  {Device: h.Devices[0], Size: mib},
		"a huge one":                   {Device: h.Devices[0], Size: maxSize + 2*mib},
		"an address between two pages": {Device: h.Devices[0], Size: 2 * mib, Address: mib},
		"an address beyond all":        {Device: h.Devices[0], Size: 2 * mib, Address: maxAddress + 2*mib},
	} {
		if err := c.Hold(t.Context(), []record.GPUPiece{p}, []*os.File{null}, nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "device memory 0, ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Hold(t.Context(), pieces, []*os.File{null}, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too few descriptors: %v", err)
	}
	if err := c.Hold(t.Context(), pieces[:1], []*os.File{null}, nil); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is closed: %v", err)
	}
	if err := c.Send(t.Context(), null); !errors.Is(err, unix.EBADF) {
		t.Errorf("a peer that is closed: %v", err)
	}
	if err := c.Open([]string{"x"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a device without a UUID: %v", err)
	}
	if err := errors.Join(h.fill(c, pieces), h.check(c, pieces)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestServeRefuses: what no client sends ends the keeper, or is refused.
func TestServeRefuses(t *testing.T) {
	h := newHost(t)
	open := KeeperRequest{Do: VerbOpen, Version: KeeperVersion, Ring: &small}
	for name, test := range map[string]struct {
		before []KeeperRequest
		ask    any
		say    string // in an answer; "": the keeper ends
	}{
		"let go before open": {nil, KeeperRequest{Do: VerbLetGo}, "open is the first"},
		"open twice":         {[]KeeperRequest{open}, open, "open is the first"},
		"another version":    {nil, KeeperRequest{Do: VerbOpen, Version: 7, Ring: &small}, "version 7"},
		"no such device":     {nil, KeeperRequest{Do: VerbOpen, Version: KeeperVersion, Ring: &small, Devices: []string{"GPU-00000009-0000-4000-8000-00000000000a"}}, "no such device"},
		"no ring":            {nil, KeeperRequest{Do: VerbOpen, Version: KeeperVersion}, ""},
		"nothing to do":      {nil, KeeperRequest{}, ""},
		"no descriptor":      {[]KeeperRequest{open}, KeeperRequest{Do: VerbSend}, ""},
		"an unknown field":   {nil, map[string]any{"do": "open", "more": 1}, ""},
		"nothing to copy":    {[]KeeperRequest{open}, KeeperRequest{Do: VerbCopy}, ""},
	} {
		p, err := RunProgram(h.Helper(), "keeper")
		if err != nil {
			t.Fatal(err)
		}
		ask := func(r any) (a KeeperAnswer, err error) {
			if err := p.Channel.Send(r); err != nil {
				return a, err
			}
			_, err = p.Channel.Receive(&a)
			return a, err
		}
		for _, r := range test.before {
			if a, err := ask(r); err != nil || a.Error != nil {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
		}
		a, err := ask(test.ask)
		switch {
		case test.say == "" && err == nil:
			t.Errorf("%s: %+v", name, a)
		case test.say != "" && (err != nil || a.Error == nil || !strings.Contains(a.Error.err().Error(), test.say)):
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if died := p.Died(); !strings.Contains(died.Error(), "exit status 1") {
			t.Errorf("%s: %v", name, died)
		}
		p.Channel.Close()
	}
}
