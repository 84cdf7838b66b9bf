package trust

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	packetsock "github.com/checkpoint-restore/go-criu/v8/crit/images/packet-sock"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	skunix "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// dump is what CRIU's images say, before it is written; tests change it.
type dump struct {
	inventory *inventory.InventoryEntry
	ids       *criucore.TaskKobjIdsEntry // of both processes
	creds     *creds.CredsEntry          // of the second process
	mounts    []*mnt.MntEntry
	cgroups   *cgroup.CgroupEntry
	files     []*fdinfo.FileEntry
	spec      *specs.Spec
}

func mount(id, parent uint32, kind mnt.Fstype, flags uint32, root, at, source, key string) *mnt.MntEntry {
	e := &mnt.MntEntry{Fstype: proto.Uint32(uint32(kind)), MntId: &id, RootDev: &id, ParentMntId: &parent, Flags: &flags, Root: &root, Mountpoint: &at, Source: &source, Options: proto.String(""), SbFlags: proto.Uint32(0)}
	if key != "" {
		e.ExtKey = &key
	}
	return e
}

// ordinaryDump is that of a container of ctr run with a bind mount at /data.
func ordinaryDump(t *testing.T) *dump {
	devices := mount(7, 1, mnt.Fstype_TMPFS, 0, "/", "/dev", "tmpfs", "")
	devices.Options = proto.String("size=65536k,mode=755")
	id := func(pid, net uint32) *criucore.TaskKobjIdsEntry {
		n := proto.Uint32
		return &criucore.TaskKobjIdsEntry{VmId: n(1), FilesId: n(1), FsId: n(1), SighandId: n(1), PidNsId: n(pid), NetNsId: n(net), IpcNsId: n(pid + 1), UtsNsId: n(pid + 2), MntNsId: n(pid + 3), UserNsId: n(7)}
	}
	const caps = 0xa80425fb // the default set
	z := proto.Uint32(0)
	return &dump{
		inventory: &inventory.InventoryEntry{ImgVersion: proto.Uint32(2), RootIds: id(100, 200)},
		ids:       id(300, 400),
		creds: &creds.CredsEntry{Uid: z, Gid: z, Euid: z, Egid: z, Suid: z, Sgid: z, Fsuid: z, Fsgid: z, Secbits: z,
			CapInh: []uint32{0, 0}, CapPrm: []uint32{caps, 0}, CapEff: []uint32{caps, 0}, CapBnd: []uint32{caps, 0}, NoNewPrivs: proto.Uint32(1)},
		mounts: []*mnt.MntEntry{
			mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""),
			mount(2, 1, mnt.Fstype_PROC, 0, "/", "/proc", "proc", ""),
			mount(3, 2, mnt.Fstype_PROC, 1, "/sys", "/proc/sys", "proc", ""),
			mount(4, 2, mnt.Fstype_TMPFS, 0, "/null", "/proc/keys", "tmpfs", "/dev/null"),
			mount(5, 1, mnt.Fstype_SYSFS, 1, "/", "/sys", "sysfs", ""),
			mount(6, 5, mnt.Fstype_TMPFS, 1, "/", "/sys/firmware", "tmpfs", ""),
			devices,
			mount(8, 7, mnt.Fstype_DEVPTS, 0, "/", "/dev/pts", "devpts", ""),
			mount(9, 1, mnt.Fstype_UNSUPPORTED, 0, "/srv", "/data", "/dev/vda", "/data"),
		},
		cgroups: &cgroup.CgroupEntry{
			Sets: []*cgroup.CgSetEntry{{Id: proto.Uint32(2), Ctls: []*cgroup.CgMemberEntry{
				{Name: proto.String("memory"), Path: proto.String("/default/c")}, {Name: proto.String("cpu"), Path: proto.String("/default/c/inner")}}}},
			Controllers: []*cgroup.CgControllerEntry{
				{Cnames: []string{"memory"}, Dirs: []*cgroup.CgroupDirEntry{{DirName: proto.String("default/c")}}},
				{Cnames: []string{"cpu"}, Dirs: []*cgroup.CgroupDirEntry{{DirName: proto.String("default/c"), Children: []*cgroup.CgroupDirEntry{{DirName: proto.String("inner")}}}}},
			},
		},
		files: []*fdinfo.FileEntry{reg("/bin/sh"), reg("/"), {Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{Name: []byte("\x00a/../b")}}},
		spec:  ctrRun(t, oci.WithMounts([]specs.Mount{{Destination: "/data", Type: "bind", Source: "/srv"}})),
	}
}

func reg(name string) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Reg: &regfile.RegFileEntry{Name: &name, Mode: proto.Uint32(unix.S_IFREG | 0o644)}}
}

// complete gives the required fields of a message that have no value their zero value.
func complete(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		message := f.Kind() == protoreflect.MessageKind
		switch {
		case f.IsList() && message:
			for j := range m.Get(f).List().Len() {
				complete(m.Get(f).List().Get(j).Message())
			}
		case message && (m.Has(f) || f.Cardinality() == protoreflect.Required):
			complete(m.Mutable(f).Message())
		case f.Cardinality() == protoreflect.Required && !m.Has(f):
			m.Set(f, m.NewField(f))
		}
	}
}

func writeImage(t *testing.T, dir, name string, records ...proto.Message) {
	t.Helper()
	data := binary.LittleEndian.AppendUint32(nil, 0x54564319)
	data = binary.LittleEndian.AppendUint32(data, 0x12345678)
	if name == "inventory.img" {
		data = data[4:]
	}
	for _, r := range records {
		complete(r.ProtoReflect())
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(b))), b...)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d *dump) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	n := proto.Uint32
	core := func(c *creds.CredsEntry) *criucore.CoreEntry {
		march := criucore.CoreEntry_X86_64
		return &criucore.CoreEntry{Mtype: &march, ThreadCore: &criucore.ThreadCoreEntry{FutexRla: proto.Uint64(0), FutexRlaLen: n(0), Creds: c}}
	}
	writeImage(t, dir, "inventory.img", d.inventory)
	writeImage(t, dir, "pstree.img", &pstree.PstreeEntry{Pid: n(1), Ppid: n(0), Pgid: n(1), Sid: n(1)}, &pstree.PstreeEntry{Pid: n(7), Ppid: n(1), Pgid: n(1), Sid: n(1)})
	if d.ids != nil {
		writeImage(t, dir, "ids-1.img", d.ids)
		writeImage(t, dir, "ids-7.img", d.ids)
	}
	writeImage(t, dir, "core-1.img", core(&creds.CredsEntry{Uid: n(0), Gid: n(0), Euid: n(0), Egid: n(0), Suid: n(0), Sgid: n(0), Fsuid: n(0), Fsgid: n(0), Secbits: n(0), NoNewPrivs: n(1)}))
	writeImage(t, dir, "core-7.img", core(d.creds))
	var mounts []proto.Message
	for _, m := range d.mounts {
		mounts = append(mounts, m)
	}
	writeImage(t, dir, fmt.Sprintf("mountpoints-%d.img", d.ids.GetMntNsId()), mounts...)
	writeImage(t, dir, "cgroup.img", d.cgroups)
	var files []proto.Message
	for i, f := range d.files {
		f.Id = n(uint32(i + 1))
		files = append(files, f)
	}
	writeImage(t, dir, "files.img", files...)
	return dir
}

// here is a host whose kernel has these of the dangerous files.
func here(path string) bool { return path == "/proc/sys" || path == "/proc/keys" }

// reviewImages returns an error if images are damaged, or ask for what the policy does not allow.
func reviewImages(images fs.FS, spec *specs.Spec, p Policy, exists func(path string) bool) error {
	requests, err := ReviewImages(images, spec, exists)
	return cmp.Or(err, Refuse(p.Judge(requests)))
}

func TestImagesOfAnOrdinaryContainer(t *testing.T) {
	d := ordinaryDump(t)
	for name, mount := range map[string]int32{"/proc/meminfo": 2, "/proc/1/mountinfo": 2, "/proc/sys/kernel/random/boot_id": 3, "/sys/devices/system/cpu/online": 5} {
		f := reg(name)
		f.Reg.MntId = &mount
		d.files = append(d.files, f)
	}
	if err := reviewImages(os.DirFS(d.write(t)), d.spec, Policy{}, here); err != nil {
		t.Error(err)
	}
}

// TestImagesOfSlaves: where the host's mounts are shared, as systemd has them, what runc gives a source is a slave of that.
func TestImagesOfSlaves(t *testing.T) {
	d := ordinaryDump(t)
	for i, master := range map[int]uint32{0: 700, 3: 12, 8: 1} {
		d.mounts[i].MasterId = &master
	}
	if err := reviewImages(os.DirFS(d.write(t)), d.spec, Policy{}, here); err != nil {
		t.Error(err)
	}
}

func TestImagesThatHoldMore(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dump)
		grant  Grant
		names  string
	}{
		"capability":             {func(d *dump) { d.creds.CapEff = []uint32{1 << 21, 0} }, Capabilities, "CAP_SYS_ADMIN"},
		"capability in bounding": {func(d *dump) { d.creds.CapBnd = []uint32{0, 1 << (39 - 32)} }, Capabilities, "CAP_BPF"},
		"unknown capability":     {func(d *dump) { d.creds.CapInh = []uint32{0, 0, 1} }, Capabilities, "capability 64"},
		"host's pid namespace":   {func(d *dump) { d.ids.PidNsId = d.inventory.RootIds.PidNsId }, Namespaces, "pid"},
		"host's network":         {func(d *dump) { d.ids.NetNsId = d.inventory.RootIds.NetNsId }, Namespaces, "network"},
		"no mount namespace":     {func(d *dump) { d.ids.MntNsId = nil }, Namespaces, "mount"},
		"disk": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_AUTO, 0, "/", "/x", "/dev/vda", ""))
		}, Mounts, "/dev/vda"},
		"disk of a known device": {func(d *dump) {
			e := mount(20, 1, mnt.Fstype_AUTO, 0, "/", "/x", "/dev/vda", "")
			e.RootDev = d.mounts[0].RootDev
			d.mounts = append(d.mounts, e)
		}, Mounts, "/dev/vda"},
		"overlay": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_OVERLAYFS, 0, "/", "/x", "overlay", ""))
		}, Mounts, "/x"},
		"debugfs": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_DEBUGFS, 0, "/", "/x", "debugfs", ""))
		}, Mounts, "debugfs"},
		"host's devices": {func(d *dump) { d.mounts[6] = mount(7, 1, mnt.Fstype_DEVTMPFS, 0, "/", "/dev", "devtmpfs", "") }, Mounts, "devtmpfs"},
		"external mount": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_UNSUPPORTED, 0, "/", "/x", "/dev/vda", "/x"))
		}, Mounts, "/x"},
		"second proc": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_PROC, 0, "/", "/proc2", "proc", ""))
		}, Mounts, "/proc2"},
		"part of proc elsewhere": {func(d *dump) { d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_PROC, 1, "/sys", "/x", "proc", "")) }, Mounts, "/x"},
		"writable sysfs":         {func(d *dump) { *d.mounts[4].Flags = 0 }, Mounts, "/sys"},
		"writable cgroup": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 5, mnt.Fstype_CGROUP2, 0, "/", "/sys/fs/cgroup", "cgroup2", ""))
		}, Mounts, "cgroup2"},
		"another user": {func(d *dump) {
			d.spec.Process.NoNewPrivileges, d.spec.Process.Capabilities = true, &specs.LinuxCapabilities{}
			d.creds.CapPrm, d.creds.CapEff, d.creds.CapBnd = nil, nil, nil
			d.creds.Fsuid = proto.Uint32(7)
		}, Privileges, "users [0 0 0 7]"},
		"another group": {func(d *dump) {
			d.spec.Process.NoNewPrivileges, d.spec.Process.Capabilities = true, &specs.LinuxCapabilities{}
			d.spec.Process.User.AdditionalGids = []uint32{10}
			d.creds.CapPrm, d.creds.CapEff, d.creds.CapBnd = nil, nil, nil
			d.creds.Groups = []uint32{0, 10, 999}
		}, Privileges, "[0 10 999]"},
		"external key":          {func(d *dump) { d.mounts[5].ExtKey = proto.String("/etc") }, Mounts, "which is in CRIU's images"},
		"no mask":               {func(d *dump) { d.mounts[3].Mountpoint = proto.String("/tmp") }, Privileges, "/proc/keys"},
		"writable /proc/sys":    {func(d *dump) { d.mounts[2] = mount(3, 2, mnt.Fstype_TMPFS, 1, "/", "/proc/sis", "tmpfs", "") }, Privileges, "/proc/sys"},
		"cgroup of the host":    {func(d *dump) { d.cgroups.Sets[0].Ctls[0].Path = proto.String("/") }, Privileges, "memory"},
		"cgroup of a neighbour": {func(d *dump) { d.cgroups.Sets[0].Ctls[0].Path = proto.String("/default/cc") }, Privileges, "/default/cc"},
		"two tops": {func(d *dump) {
			d.cgroups.Controllers[0].Dirs = append(d.cgroups.Controllers[0].Dirs, &cgroup.CgroupDirEntry{DirName: proto.String("x")})
		}, Privileges, "2 cgroups"},
		"root as the top": {func(d *dump) { d.cgroups.Controllers[0].Dirs[0].DirName = proto.String("") }, Privileges, "root cgroup"},
		"proc on proc": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 2, mnt.Fstype_PROC, 0, "/", "/proc", "proc", ""))
		}, Privileges, "2 mounts of proc"},
		"proc on the root": {func(d *dump) {
			*d.mounts[1].ParentMntId, *d.mounts[2].ParentMntId = 1, 1
			d.mounts[1], d.mounts[2] = d.mounts[2], d.mounts[1]
		}, Privileges, "/proc/sys"},
		"proc beside its mask": {func(d *dump) { *d.mounts[2].ParentMntId = 1 }, Privileges, "/proc/sys"},
		"mask on what is covered": {func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_TMPFS, 0, "/", "/proc", "tmpfs", ""))
			*d.mounts[1].ParentMntId, *d.mounts[2].ParentMntId = 20, 20
		}, Privileges, "/proc/sys"},
		"packet socket": {func(d *dump) {
			d.files = []*fdinfo.FileEntry{{Type: fdinfo.FdTypes_PACKETSK.Enum(), Psk: &packetsock.PacketSockEntry{}}}
			d.spec.Process.Capabilities = &specs.LinuxCapabilities{}
			d.creds = &creds.CredsEntry{}
		}, Capabilities, "CAP_NET_RAW"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			c.change(d)
			dir := d.write(t)
			err := reviewImages(os.DirFS(dir), d.spec, Policy{}, here)
			if !errdefs.IsPermissionDenied(err) || first(err) != c.grant || !strings.Contains(err.Error(), c.names) {
				t.Fatalf("Images = %v", err)
			}
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{All}}, here); err != nil {
				t.Errorf("with all: %v", err)
			}
		})
	}
}

func TestImagesHoldWhatWasGranted(t *testing.T) {
	d := ordinaryDump(t)
	d.spec.Process.Capabilities.Bounding = append(d.spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	d.creds.CapEff = []uint32{1 << 21, 0}
	d.spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
	d.ids.NetNsId = d.inventory.RootIds.NetNsId
	d.spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}}
	d.mounts = append(d.mounts, mount(20, 7, mnt.Fstype_DEVTMPFS, 0, "/kvm", "/dev/kvm", "devtmpfs", "/dev/kvm"))
	if err := reviewImages(os.DirFS(d.write(t)), d.spec, Policy{}, here); err != nil {
		t.Error(err)
	}
}

func TestDamagedImages(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *dump, string){
		"no inventory":    func(_ *testing.T, _ *dump, dir string) { _ = os.Remove(filepath.Join(dir, "inventory.img")) },
		"no process tree": func(_ *testing.T, _ *dump, dir string) { _ = os.Remove(filepath.Join(dir, "pstree.img")) },
		"no namespaces":   func(_ *testing.T, _ *dump, dir string) { _ = os.Remove(filepath.Join(dir, "ids-1.img")) },
		"no outside": func(t *testing.T, _ *dump, dir string) {
			writeImage(t, dir, "inventory.img", &inventory.InventoryEntry{})
		},
		"truncated":     func(_ *testing.T, _ *dump, dir string) { _ = os.Truncate(filepath.Join(dir, "core-7.img"), 40) },
		"empty":         func(_ *testing.T, _ *dump, dir string) { _ = os.Truncate(filepath.Join(dir, "cgroup.img"), 0) },
		"half a header": func(_ *testing.T, _ *dump, dir string) { _ = os.Truncate(filepath.Join(dir, "cgroup.img"), 6) },
		"no mounts":     func(t *testing.T, _ *dump, dir string) { writeImage(t, dir, "mountpoints-303.img") },
		"two roots": func(t *testing.T, d *dump, dir string) {
			writeImage(t, dir, "mountpoints-303.img", d.mounts[0], mount(30, 98, mnt.Fstype_AUTO, 0, "/", "/", "/dev/vda", ""))
		},
		"root is elsewhere": func(t *testing.T, d *dump, dir string) {
			writeImage(t, dir, "mountpoints-303.img", mount(30, 98, mnt.Fstype_AUTO, 0, "/", "/x", "/dev/vda", ""))
		},
		"one id twice": func(t *testing.T, d *dump, dir string) {
			writeImage(t, dir, "mountpoints-303.img", d.mounts[0], d.mounts[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			change(t, d, dir)
			var damaged *DamagedError
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{All}}, here); !errors.As(err, &damaged) || !errdefs.IsDataLoss(err) {
				t.Errorf("Images = %v", err)
			}
		})
	}
}

// TestForgedImages: what no checkpoint writes is refused whatever was granted.
func TestForgedImages(t *testing.T) {
	str := proto.String
	property := func(name string) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			d.cgroups.Controllers[1].Dirs[0].Children[0].Properties = []*cgroup.CgroupPropEntry{{Name: &name, Value: str("x")}}
			writeImage(t, dir, "cgroup.img", d.cgroups)
		}
	}
	cgroups := func(change func(*dump)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			change(d)
			writeImage(t, dir, "cgroup.img", d.cgroups)
		}
	}
	file := func(e *fdinfo.FileEntry) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) { writeImage(t, dir, "files.img", e) }
	}
	mounts := func(change func(*dump)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			change(d)
			writeImage(t, dir, "mountpoints-303.img", d.mounts[0], d.mounts[1])
		}
	}
	raw := func(name, text string) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *dump, string)
		words  string
	}{
		"property with a path":    {property("../../../../etc/cron.d/x"), "property"},
		"property in a directory": {property("a/b"), "property"},
		"release agent":           {property("release_agent"), "property"},
		"cgroup with dots":        {cgroups(func(d *dump) { d.cgroups.Sets[0].Ctls[1].Path = str("/default/c/../d") }), "/default/c/../d"},
		"child with dots":         {cgroups(func(d *dump) { d.cgroups.Controllers[1].Dirs[0].Children[0].DirName = str("../x") }), "../x"},
		"child with a path":       {cgroups(func(d *dump) { d.cgroups.Controllers[1].Dirs[0].Children[0].DirName = str("a/b") }), "a/b"},
		"top with dots":           {cgroups(func(d *dump) { d.cgroups.Controllers[1].Dirs[0].DirName = str("default/../x") }), "default/../x"},
		"controller with a path":  {cgroups(func(d *dump) { d.cgroups.Controllers[0].Cnames[0] = "name=../x" }), "name=../x"},
		"controller twice":        {cgroups(func(d *dump) { d.cgroups.Controllers[0].Cnames[0] = "cpu" }), "two hierarchies"},
		"member of a part":        {cgroups(func(d *dump) { d.cgroups.Sets[0].Ctls[0].Name = str("x,memory") }), "x,memory"},
		"open file outside":       {file(reg("/../../etc/x")), "/../../etc/x"},
		"relative open file":      {file(reg("etc/x")), "absolute"},
		"long open file":          {file(reg("/" + strings.Repeat("a/", 2040))), "too long"},
		"long name":               {file(reg("/" + strings.Repeat("a", 256))), "256"},
		"zero byte":               {file(reg("/a\x00b")), "zero byte"},
		"socket outside":          {file(&fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{Name: []byte("../x\x00")}}), "../x"},
		"socket's directory": {file(&fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{NameDir: str("/a/../..")}}),
			"/a/../.."},
		"BPF map": {file(&fdinfo.FileEntry{Type: fdinfo.FdTypes_BPFMAP.Enum()}), "BPFMAP"},
		"deleted device": {func(t *testing.T, _ *dump, dir string) {
			writeImage(t, dir, "ghost-file-1.img", &ghostfile.GhostFileEntry{Mode: proto.Uint32(0o060666)})
		}, "type"},
		"mount with dots":       {mounts(func(d *dump) { d.mounts[1].Mountpoint = str("/a/../proc") }), "/a/../proc"},
		"relative mount":        {mounts(func(d *dump) { d.mounts[1].Mountpoint = str("proc") }), "proc"},
		"unknown image":         {raw("autofs-1.img", ""), "autofs-1.img"},
		"pipe where CRIU talks": {raw("descriptors.json", `["/dev/null","/dev/null","/dev/null","pipe:[1]"]`), "4 standard streams"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			c.change(t, d, dir)
			var damaged *DamagedError
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{All}}, here); !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("Images = %v", err)
			}
		})
	}
}

// FuzzImages: no image makes it panic, and mounts that pass without a grant are those that every container has.
func FuzzImages(f *testing.F) {
	f.Add([]byte{0x19, 0x43, 0x56, 0x54, 0, 0, 0, 0, 2, 0, 0, 0, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		images := fstest.MapFS{"x": {Data: data}}
		_ = eachIn(images, "x", func(*inventory.InventoryEntry) error { return nil })
		_ = eachIn(images, "x", func(*criucore.CoreEntry) error { return nil })
		_ = eachIn(images, "x", func(s *cgroup.CgroupEntry) error {
			for _, c := range s.GetControllers() {
				for _, d := range c.GetDirs() {
					_ = directory(d, 0)
				}
			}
			return nil
		})
		var entries []*mnt.MntEntry
		if err := eachIn(images, "x", func(e *mnt.MntEntry) error {
			entries = append(entries, e)
			return nil
		}); err != nil {
			return
		}
		r := newImageReviewer(nil, &specs.Spec{}, here)
		if r.tree(entries) != nil || len(r.requests) > 0 {
			return
		}
		for _, e := range entries {
			if e.GetFstype() == uint32(mnt.Fstype_AUTO) && e.GetMountpoint() != "/" && e.GetExtKey() == "" {
				t.Errorf("a mount of anything passed: %v", e)
			}
		}
	})
}
