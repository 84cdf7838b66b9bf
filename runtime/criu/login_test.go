package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

func TestForgetLogin(t *testing.T) {
	for name, logins := range map[string][2]*uint32{
		"of a person": {new(uint32(1000)), new(uint32(1000))}, "none": {new(uint32(noLogin)), new(uint32(noLogin))}, "not recorded": {}, "of the container's sshd": {new(uint32(noLogin)), new(uint32(0))},
	} {
		dir := t.TempDir()
		write := func(file string, records ...proto.Message) {
			image := []byte("magicnum")
			for _, r := range records {
				data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				image = append(binary.LittleEndian.AppendUint32(image, uint32(len(data))), data...)
			}
			if err := os.WriteFile(filepath.Join(dir, file), image, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		entry := func(login *uint32) *criu_core.CoreEntry {
			mtype := criu_core.CoreEntry_X86_64
			return &criu_core.CoreEntry{Mtype: &mtype, Tc: &criu_core.TaskCoreEntry{
				TaskState: new(uint32(1)), ExitCode: new(uint32(0)), Personality: new(uint32(0)), Flags: new(uint32(0)), BlkSigset: new(uint64(0)), Comm: new("x"), Loginuid: login,
			}}
		}
		process := func(pid uint32) *pstree.PstreeEntry {
			return &pstree.PstreeEntry{Pid: &pid, Ppid: new(uint32(0)), Pgid: &pid, Sid: &pid, Threads: []uint32{pid}}
		}
		write("pstree.img", process(7), process(8))
		write("core-7.img", entry(logins[0]))
		write("core-8.img", entry(logins[1]))
		if err := ForgetLogin(dir); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"core-7.img", "core-8.img"} {
			if err := eachRecord(dir, file, func(data []byte) error {
				var c criu_core.CoreEntry
				err := proto.Unmarshal(data, &c)
				if has := c.GetTc().Loginuid; has != nil && *has != noLogin || c.GetTc().GetComm() != "x" {
					t.Errorf("%s: %s has %v", name, file, &c)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	}
	if err := ForgetLogin(t.TempDir()); err != nil {
		t.Errorf("without images: %v", err)
	}
}
