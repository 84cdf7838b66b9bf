package integration

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/integration/lab"
)

// rewrite changes the records of one of CRIU's images, which begins with two magic numbers.
func rewrite[T any, P interface {
	*T
	proto.Message
}](t *testing.T, dir, pattern string, change func([]P) []P) {
	t.Helper()
	rewriteHead[T, P](t, 8, dir, pattern, change)
}

// rewriteHead is rewrite of an image that begins with so many bytes of magic numbers.
func rewriteHead[T any, P interface {
	*T
	proto.Message
}](t *testing.T, head int, dir, pattern string, change func([]P) []P) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no image %s: %v", pattern, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	const word = 4
	var all []P
	for rest := data[head:]; len(rest) > 0; {
		n := binary.LittleEndian.Uint32(rest)
		m := P(new(T))
		if err := proto.Unmarshal(rest[word:word+n], m); err != nil {
			t.Fatal(err)
		}
		all, rest = append(all, m), rest[word+n:]
	}
	out := data[:head:head]
	for _, m := range change(all) {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	if err := os.WriteFile(found[0], out, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestForged has snapshots whose CRIU images would have CRIU, which is root, leave the container: each is refused before CRIU begins, whatever is allowed,
// by the command and by the shim, and nothing outside is touched.
func TestForged(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"})
	g := newForger(t, f)
	pullBase(t, b)
	canaries := t.TempDir()
	canary := filepath.Join(canaries, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o640); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	property := func(change func(*cgroup.CgroupEntry)) func(string) {
		return func(dir string) {
			rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
				change(all[0])
				return all
			})
		}
	}
	openFile := func(name string) func(string) {
		return func(dir string) {
			rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
				for _, e := range all {
					if e.GetReg() != nil && e.GetReg().GetName() != "/" {
						e.Reg.Name = &name
						return all
					}
				}
				t.Fatal("no process has a file open")
				return nil
			})
		}
	}
	for _, test := range []struct {
		name, rule, words string
		change            func(dir string)
	}{
		{"cgroup property", "cgroups", "property", property(func(e *cgroup.CgroupEntry) {
			e.Controllers[0].Dirs[0].Properties = append(e.Controllers[0].Dirs[0].Properties, &cgroup.CgroupPropEntry{Name: proto.String(up + canary), Value: proto.String("forged"),
				Perms: &cgroup.CgroupPerms{Mode: proto.Uint32(0o4777), Uid: proto.Uint32(0), Gid: proto.Uint32(0)}})
		})},
		{"cgroup controller", "cgroups", "controller", property(func(e *cgroup.CgroupEntry) { e.Controllers[0].Cnames = []string{"name=" + up + canary + ".d"} })},
		{"cgroup member", "cgroups", "hierarchy", property(func(e *cgroup.CgroupEntry) { e.Sets[0].Ctls[0].Name = proto.String("x,devices") })},
		{"open file", "open-files", "leads out", openFile("/" + up + canary)},
		{"long open file", "open-files", "too long", openFile("/" + strings.Repeat("../", 1340) + canary)},
		{"proc on proc", "mounts", "2 mounts of proc", func(dir string) {
			rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
				for _, e := range all {
					if e.GetMountpoint() == "/proc" {
						second := proto.Clone(e).(*mnt.MntEntry)
						second.MntId, second.ParentMntId = proto.Uint32(e.GetMntId()+100000), e.MntId
						return append([]*mnt.MntEntry{second}, all...)
					}
				}
				t.Fatal("no proc")
				return nil
			})
		}},
		{"standard streams", "images", "standard streams", func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "descriptors.json"), []byte(`["/dev/null","/dev/null","/dev/null","pipe:[1]"]`), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"bind by a flag", "mounts", "flags 0x1000", func(dir string) {
			rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
				for _, e := range all {
					if e.GetMountpoint() == "/run" {
						e.SbFlags, e.Source = proto.Uint32(unix.MS_BIND), proto.String(canaries)
					}
				}
				return all
			})
		}},
		{"unknown field", "images", "field 900 of mnt_entry", func(dir string) {
			rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
				all[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
				return all
			})
		}},
		{"name of a dump", "inventory", "a dump of the name", func(dir string) {
			rewriteHead(t, 4, dir, "inventory.img", func(all []*inventory.InventoryEntry) []*inventory.InventoryEntry {
				all[0].DumpCriuRunId = proto.String("x\ninclude \"" + canary + "\"")
				return all
			})
		}},
		{"unknown image", "images", "autofs-1.img", func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "autofs-1.img"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := "cryo.test/forged:1"
			g.forgeImages(t, b, ref, test.change)
			code, args := codeDamaged, []string{"--allow", "all"}
			if test.name == "proc on proc" { // which may be allowed
				code, args = codeDenied, nil
			}
			told(t, b, ref, code, test.rule, test.words)
			refused(t, b, code, test.words, append([]string{"restore", ref, "--name", "forged"}, args...)...)
			if data, err := os.ReadFile(canary); err != nil || string(data) != "untouched" {
				t.Errorf("the canary is %q, %v", data, err)
			}
			if found, err := os.ReadDir(canaries); err != nil || len(found) != 1 {
				t.Errorf("beside the canary: %v, %v", found, err)
			}
		})
	}
}

// told fails unless inspect and verify say what a restore of the snapshot would refuse, and by which rule.
func told(t *testing.T, h *lab.Host, ref string, code int, rule, words string) {
	t.Helper()
	type ask struct{ Rule, What, Flag string }
	type reviewed struct {
		Asks    []ask
		Refused *ask
	}
	for _, command := range []string{"inspect", "verify"} {
		r := h.Cryo(t.Context(), command, "--json", ref)
		if want := map[string]int{"inspect": 0, "verify": code}[command]; r.Code != want {
			t.Errorf("%s: exit code %d, not %d: %s", command, r.Code, want, r.Stderr)
		}
		var said reviewed
		if err := json.Unmarshal([]byte(r.Stdout), &said); err != nil {
			t.Fatalf("%s: %v: %s", command, err, r.Stdout)
		}
		if said.Refused != nil {
			said.Asks = append(said.Asks, *said.Refused)
		}
		if !slices.ContainsFunc(said.Asks, func(a ask) bool {
			return a.Rule == rule && strings.Contains(a.What, words) && (a.Flag == "") == (code == codeDamaged)
		}) {
			t.Errorf("%s says %+v, and not %q by rule %s", command, said.Asks, words, rule)
		}
		plain := h.Cryo(t.Context(), command, ref)
		if all := plain.Stdout + plain.Stderr; !strings.Contains(all, words) || command == "inspect" && !strings.Contains(all, rule) {
			t.Errorf("%s says nothing of %q by rule %s: %s", command, words, rule, all)
		}
	}
}
