package integration

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// mostDelay is how long a command may take to end when it is told to.
const mostDelay = time.Second

// images gives CRIU's images of the snapshot, by name.
func (g *forger) images(t *testing.T) map[string][]byte {
	t.Helper()
	i := slices.IndexFunc(g.manifest.Layers, func(d ocispec.Descriptor) bool { return d.MediaType == image.MediaTypeCRIU })
	z, err := zstd.NewReader(bytes.NewReader(g.blob(t, g.manifest.Layers[i].Digest)))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	all := map[string][]byte{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// withImages gives a manifest with other images of CRIU's. Its layer is as long as its contents need.
func (g *forger) withImages(t *testing.T, all map[string][]byte) ocispec.Manifest {
	t.Helper()
	var raw bytes.Buffer
	tw := tar.NewWriter(&raw)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(all[name])), Mode: 0o600, Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(all[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return g.layer(t, image.MediaTypeCRIU, padded(compressed(t, raw.Bytes()), int64(raw.Len())), int64(raw.Len()))
}

// padded makes a layer long enough for its contents, by a skippable frame (RFC 8878, section 3.1.2).
func padded(layer []byte, contents int64) []byte {
	if n := contents/100 - int64(len(layer)); n > 0 {
		layer = append(layer, 0x50, 0x2a, 0x4d, 0x18)
		layer = binary.LittleEndian.AppendUint32(layer, uint32(n))
		layer = append(layer, make([]byte, n)...)
	}
	return layer
}

// withConfig gives a manifest with a config that change has changed, as JSON.
func (g *forger) withConfig(t *testing.T, change func(config, spec map[string]any)) ocispec.Manifest {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(g.config, &config); err != nil {
		t.Fatal(err)
	}
	change(config, config["spec"].(map[string]any))
	m := g.manifest
	m.Config = g.add(t, m.Config.MediaType, config)
	return m
}

// record is a record of an image of CRIU's.
func record(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// many is an image of CRIU's with more records: n, or as many as it holds of most bytes.
func many(img []byte, n, most int, record func(i int) []byte) []byte {
	img = slices.Clone(img)
	for i := range n {
		r := record(i)
		if len(img)+len(r) > most {
			break
		}
		img = append(img, r...)
	}
	return img
}

// values is a list of n equal values.
func values(one string, n int) json.RawMessage {
	return json.RawMessage("[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]")
}

// TestAttackLimits has snapshots that are at the limit of each bound, or a little beyond: no command takes more time and memory for them than it may, and each ends when it is
// told to.
func TestAttackLimits(t *testing.T) {
	const image64, million, half, spec = 64 << 20, 1 << 20, 1<<19 - 2000, 1<<17 - 2000
	_, b := pair(t)
	guarded(t, b)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"files"}))
	images := func(change func(t *testing.T, all map[string][]byte)) func(t *testing.T) ocispec.Manifest {
		return func(t *testing.T) ocispec.Manifest {
			all := g.images(t)
			change(t, all)
			return g.withImages(t, all)
		}
	}
	config := func(change func(config, spec map[string]any)) func(t *testing.T) ocispec.Manifest {
		return func(t *testing.T) ocispec.Manifest { return g.withConfig(t, change) }
	}
	named := func(t *testing.T, all map[string][]byte, prefix string) string {
		t.Helper()
		for name := range all {
			if strings.HasPrefix(name, prefix) {
				return name
			}
		}
		t.Fatalf("no image %s", prefix)
		return ""
	}
	for _, test := range []struct {
		name  string
		forge func(t *testing.T) ocispec.Manifest
	}{
		{"config of processes", config(func(c, _ map[string]any) { c["processes"] = values("{}", half/2) })},
		{"config of sysctls", config(func(_, s map[string]any) {
			all := map[string]string{}
			for i := range spec {
				all[fmt.Sprintf("n%x", i)] = ""
			}
			s["linux"].(map[string]any)["sysctl"] = all
		})},
		{"config of hooks", config(func(_, s map[string]any) { s["hooks"] = map[string]any{"prestart": values("{}", spec/2)} })},
		{"config of system calls", config(func(_, s map[string]any) {
			s["linux"].(map[string]any)["seccomp"] = map[string]any{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": values("{}", spec/2)}
		})},
		{"config of texts", config(func(_, s map[string]any) { s["process"].(map[string]any)["env"] = values(`""`, spec) })},
		{"config of one text", config(func(_, s map[string]any) { s["hostname"] = strings.Repeat("a", 2<<20-64<<10) })},
		{"config of one name", config(func(c, _ map[string]any) { c["container"].(map[string]any)["id"] = strings.Repeat("a", 15<<20) })},
		{"mounts that are asked for", config(func(_, s map[string]any) {
			all := []specs.Mount{{Type: "bind", Source: "/" + strings.Repeat("a", 1<<20), Destination: "/long"}}
			for i := range 4000 {
				all = append(all, specs.Mount{Type: "bind", Source: "/a", Destination: fmt.Sprintf("/%d", i)})
			}
			s["mounts"] = all
		})},
		{"4,096 mounts with long paths", config(func(_, s map[string]any) {
			var all []specs.Mount
			for i := range 4000 {
				all = append(all, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: fmt.Sprintf("/%d/a/%s", i, strings.Repeat("a", 200))})
			}
			s["mounts"] = all
		})},
		{"open files", images(func(t *testing.T, all map[string][]byte) {
			one := record(t, &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(1), Reg: &regfile.RegFileEntry{Id: proto.Uint32(1), Flags: proto.Uint32(0),
				Pos: proto.Uint64(0), Name: proto.String("/a"), Fown: &fown.FownEntry{Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0), PidType: proto.Uint32(0), Pid: proto.Uint32(0)}}})
			all["files.img"] = many(all["files.img"], million/2-100, image64, func(int) []byte { return one })
		})},
		{"empty records", images(func(t *testing.T, all map[string][]byte) {
			all["files.img"] = many(all["files.img"], 16*million, image64, func(int) []byte { return make([]byte, 4) })
		})},
		{"memory regions", images(func(t *testing.T, all map[string][]byte) {
			e := &mm.MmEntry{}
			for range million / 2 {
				e.Vmas = append(e.Vmas, nil)
			}
			all[named(t, all, "mm-")] = append(all[named(t, all, "mm-")][:8:8], record(t, e)...)
		})},
		{"the tree of half a million processes", images(func(t *testing.T, all map[string][]byte) {
			all["pstree.img"] = many(all["pstree.img"], million/2-100, image64, func(i int) []byte {
				n := proto.Uint32(uint32(i + 1000))
				return record(t, &pstree.PstreeEntry{Pid: n, Ppid: proto.Uint32(1), Pgid: n, Sid: n, Threads: []uint32{*n}})
			})
		})},
		{"4,096 mounts in CRIU's images", images(func(t *testing.T, all map[string][]byte) {
			name := named(t, all, "mountpoints-")
			long := strings.Repeat("/a", 1900)
			all[name] = many(all[name], 4000, image64, func(i int) []byte {
				return record(t, &mnt.MntEntry{Fstype: proto.Uint32(uint32(mnt.Fstype_TMPFS)), MntId: proto.Uint32(uint32(1000000 + i)), RootDev: proto.Uint32(9), ParentMntId: proto.Uint32(1000000),
					Flags: proto.Uint32(0), Root: proto.String(long), Mountpoint: proto.String(fmt.Sprintf("/%d%s", i, long)), Source: proto.String("tmpfs"), Options: proto.String(""), SbFlags: proto.Uint32(0),
					ExtKey: proto.String(fmt.Sprintf("/%d%s", i, long))})
			})
		})},
		{"images of 8,192 threads", images(func(t *testing.T, all map[string][]byte) {
			core := all[named(t, all, "core-")]
			for i := 0; len(all) < 8192; i++ {
				all[fmt.Sprintf("core-%d.img", 100000+i)] = core
			}
		})},
		{"one image more", images(func(t *testing.T, all map[string][]byte) {
			for i := 0; len(all) < 8193; i++ {
				all[fmt.Sprintf("core-%d.img", 100000+i)] = nil
			}
		})},
		{"an index of 168 MiB", func(t *testing.T) ocispec.Manifest {
			var text bytes.Buffer
			text.WriteString("cryo-index 1 sha256 xxh64 4096\n")
			for i, d := range g.manifest.Layers {
				if n := i - (len(g.manifest.Layers) - 1); n >= 0 {
					fmt.Fprintf(&text, "segment %d %s %d %d\n", n, d.Digest.Encoded(), d.Size, 1<<50)
				}
			}
			fmt.Fprintf(&text, "pages 1 pagemap-1.img %d\n", 1<<40)
			frame := "frame 0 0 1 raw 1048576 " + strings.Repeat("0", 64) + " " + strings.Repeat("0", 16) + "\n" + strings.Repeat("run 1 0 1 0\n", 256)
			for text.Len()+len(frame) < 168<<20-100 {
				text.WriteString(frame)
			}
			fmt.Fprintf(&text, "end %d\n", bytes.Count(text.Bytes(), []byte("\n")))
			return g.layer(t, image.MediaTypeIndex, padded(compressed(t, text.Bytes()), int64(text.Len())), int64(text.Len()))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := "cryo.test/limits:1"
			from := g.lay(t, ref, test.forge(t))
			away(t, ref)
			for _, args := range [][]string{{"pull", from}, {"ls"}, {"inspect", ref}, {"restore", ref, "--name", "limits"}} {
				before := []string(nil)
				if args[0] != "pull" {
					before = trace(t, b)
				}
				r, c := measured(t, b, args...)
				if args[0] == "restore" { // some are only large
					remove(t.Context(), b, "limits")
				}
				affordable(t, r, c, 1<<30)
				if said := strings.TrimSpace(r.Stderr); said != "" {
					t.Logf("%.300s", said)
				}
				if before != nil {
					wantTrace(t, b, before, "store /work/") // what was told to end leaves that to the next
				}
				if r.Elapsed < mostDelay/2 || args[0] == "restore" && r.Code == 0 { // what has been made is unmade first
					continue
				}
				at := r.Elapsed / 2
				if r := lab.Signalled(b.Command(t.Context(), "cryo", args...), at, syscall.SIGTERM); r.Elapsed-at > mostDelay {
					t.Errorf("%s was told to end after %s and took %s", args[0], at, r.Elapsed)
				}
				remove(t.Context(), b, "limits")
			}
		})
	}
}
