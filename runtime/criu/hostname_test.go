package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

func TestSetHostname(t *testing.T) {
	dir := t.TempDir()
	if err := setHostname(dir, "new", "x"); err != nil {
		t.Errorf("without an image: %v", err)
	}
	old, domain := "a-long-old-name", "(none)"
	record, err := proto.Marshal(&utsns.UtsnsEntry{Nodename: &old, Domainname: &domain})
	if err != nil {
		t.Fatal(err)
	}
	image := append(binary.LittleEndian.AppendUint32([]byte("magicnum"), uint32(len(record))), record...)
	file := filepath.Join(dir, "utsns-11.img")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := setHostname(dir, "new", ""); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names utsns.UtsnsEntry
	if err := proto.Unmarshal(data[12:], &names); err != nil || names.GetNodename() != "new" || names.Domainname == nil || names.GetDomainname() != "" ||
		string(data[:8]) != "magicnum" || int(binary.LittleEndian.Uint32(data[8:])) != len(data)-12 {
		t.Errorf("%q, %v", data, err)
	}
	for name, damaged := range map[string][]byte{"cut": image[:20], "short": image[:9], "two": append(image, image[8:]...), "nonsense": append(binary.LittleEndian.AppendUint32([]byte("magicnum"), 1), 0xff)} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := setHostname(dir, "new", ""); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
