package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChoices: of the files beside the images, those are taken that are known, and of the options of CRIU's those that give a container nothing. The others must be granted.
func TestChoices(t *testing.T) {
	for _, test := range []struct{ file, text, asks, refused string }{
		{"cryo.json", `{"tcpEstablished":true,"fileLocks":true}`, "", ""},
		{"cryo.json", `{"externalSockets":true}`, "unix sockets outside", ""},
		{"cryo.json", `{"shellJob":true}`, "", "shellJob"},
		{"cryo.json", `{"externalSockets":false} {"externalSockets":true}`, "", "cryo.json"},
		{"cryo.json", `{}` + strings.Repeat(" ", 1<<20), "", "more than"},
		{"cryo-gpu.json", `{}`, "", ""},
		{"cryo-snapshot.json", `{}`, "", ""},
		{"cryo-more.json", `{}`, "", "no such image"},
		{"descriptors.json", `["/dev/null","/dev/null","/dev/null"]`, "", ""},
		{"descriptors.json", `["a","a","a","a"]`, "", "standard streams"},
		{"descriptors.json", `[` + strings.Repeat(`"",`, 1<<15) + `""]`, "", "values"},
		{"descriptors.yaml", `[]`, "", "no such image"},
	} {
		d := ordinaryDump(t)
		dir := d.write(t)
		if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		requests, err := ReviewImages(os.DirFS(dir), d.spec, here)
		if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s, %.60s: %v", test.file, test.text, err)
		}
		if (len(requests) > 0) != (test.asks != "") || len(requests) > 0 && (!strings.Contains(requests[0].What, test.asks) || requests[0].Grant != Privileges) {
			t.Errorf("%s, %.60s: asks for %v", test.file, test.text, requests)
		}
	}
}
