package device

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func FuzzHelperRequest(f *testing.F) {
	for _, seed := range []string{
		`{"do":"facts"}`, `{"do":"states","pids":[1,2]}`, `{"do":"lock","pids":[7],"timeout":10000}`,
		`{"do":"restore","pids":[7],"pairs":[{"old":"GPU-00000001-0000-4000-8000-00000000000a","new":"GPU-00000002-0000-4000-8000-00000000000a"}]}`,
		`{"do":"unlock","pids":[0]}`, `{"do":"unlock","pids":[1,1]}`, `{"do":"checkpoint","timeout":1}`, `{"do":""}`, `{} {}`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := decodeRequest(line)
		if err != nil {
			return
		}
		seen := map[int]bool{}
		for _, pid := range r.PIDs {
			if pid <= 0 || seen[pid] {
				t.Errorf("let through %q", line)
			}
			seen[pid] = true
		}
		again(t, r, decodeRequest)
	})
}

func FuzzHelperAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"hello":1}`, `{"states":{"7":"locked"}}`, `{"states":{"7":"asleep"}}`, `{"outcomes":[{"pid":7,"seconds":0.5,"call":"cuCheckpointProcessLock","code":600,"name":"CUDA_ERROR_NOT_READY"}]}`,
		`{"facts":{"driver":"580.159.04","cuda":13000,"devices":[],"uses":[],"mps":false}}`, `{"driver":{"fault":"old","message":"m"}}`, `{"error":"no"}`, `{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := decodeHelperAnswer(line)
		if err != nil {
			return
		}
		again(t, a, decodeHelperAnswer)
	})
}

// again fails the test where encoding and decoding changes a message.
func again[T any](t *testing.T, m T, decode func([]byte) (T, error)) {
	t.Helper()
	line, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(line)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	second, err := json.Marshal(got)
	if err != nil || !bytes.Equal(line, second) && !reflect.DeepEqual(m, got) {
		t.Errorf("%q became %q, %v", line, second, err)
	}
}

func TestParseUUID(t *testing.T) {
	for text, ok := range map[string]bool{
		"GPU-01020304-0506-0708-090a-0b0c0d0e0f10":  true,
		"GPU-01020304-0506-0708-090A-0B0C0D0E0F10":  true,
		"01020304-0506-0708-090a-0b0c0d0e0f10":      false,
		"GPU-0102030405060708090a0b0c0d0e0f10":      false,
		"GPU-0102030-40506-0708-090a-0b0c0d0e0f10":  false,
		"GPU-01020304-0506-0708-090a-0b0c0d0e0f1":   false,
		"GPU-01020304-0506-0708-090a-0b0c0d0e0f100": false,
		"GPU-0102030x-0506-0708-090a-0b0c0d0e0f10":  false,
		"MIG-01020304-0506-0708-090a-0b0c0d0e0f10":  false,
		"": false,
	} {
		id, err := ParseUUID(text)
		if (err == nil) != ok || ok && id != [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16} {
			t.Errorf("%q: %v, %v", text, id, err)
		}
	}
}
