package trust

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fh"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fsnotify"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pipe"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	sknetlink "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-netlink"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/tty"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/userns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestFields: each row of the table has its columns, and names a message of CRIU's and fields that it has. Each message that a reviewed one is made of has a row.
func TestFields(t *testing.T) {
	kinds := regexp.MustCompile(`^(data|own|rule|outside|see )`)
	for line := range strings.Lines(fieldsTable) {
		if columns := strings.Split(line, "\t"); !strings.HasPrefix(line, "#") && (len(columns) < 3 || len(columns) > 4 || !kinds.MatchString(columns[2])) {
			t.Errorf("a row without its columns: %q", line)
		}
	}
	for name, fields := range reviewed() {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for field := range fields {
			f := found.(protoreflect.MessageDescriptor).Fields().ByName(field)
			if f == nil {
				t.Errorf("%s has no field %s", name, field)
				continue
			}
			if f.Kind() == protoreflect.MessageKind && reviewed()[f.Message().Name()] == nil {
				t.Errorf("%s has a %s, which has no row", name, f.Message().Name())
			}
		}
	}
}

// TestForgedFields: what a message may not hold is refused whatever was granted, by its name.
func TestForgedFields(t *testing.T) {
	str, n := proto.String, proto.Uint32
	write := func(name string, records ...proto.Message) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) { image(t, dir, name, records...) }
	}
	// more appends bytes to an image's last record.
	more := func(name string, record proto.Message, b []byte) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) {
			image(t, dir, name, record)
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			const head = 8
			binary.LittleEndian.PutUint32(data[head:], binary.LittleEndian.Uint32(data[head:])+uint32(len(b)))
			if err := os.WriteFile(path, append(data, b...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	dumpOf := func(change func(*dump)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			change(d)
			written := d.write(t)
			if err := os.CopyFS(filepath.Join(dir, "parent"), os.DirFS(t.TempDir())); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"mountpoints-12.img", "inventory.img", "cgroup.img"} {
				data, err := os.ReadFile(filepath.Join(written, name))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	netlink := func(length uint32, kind uint16) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) {
			data := make([]byte, 8+20)
			binary.LittleEndian.PutUint32(data, 0x54564319)
			binary.LittleEndian.PutUint32(data[8:], length)
			binary.LittleEndian.PutUint16(data[12:], kind)
			if err := os.WriteFile(filepath.Join(dir, "netns-ct-10.img"), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *dump, string)
		words  string
	}{
		"unknown field":          {more("files.img", reg("/a"), protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)), "field 900 of file_entry"},
		"field twice":            {more("files.img", reg("/a"), protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)), "field id of file_entry twice"},
		"field of another type":  {more("files.img", reg("/a"), protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), []byte{1})), "twice"},
		"descriptor of CRIU's":   {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Reg: &regfile.RegFileEntry{Name: str("/a"), Ext: proto.Bool(true)}}), "field ext of reg_file_entry"},
		"file to be made":        {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Reg: &regfile.RegFileEntry{Name: str("/a"), Flags: n(0o100)}}), "made or emptied"},
		"file of two kinds":      {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_PIPE.Enum(), Pipe: &pipe.PipeEntry{}, Reg: &regfile.RegFileEntry{Name: str("/a")}}), "also reg"},
		"file of no kind":        {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_PIPE.Enum()}), "no more of it"},
		"policies of AppArmor":   {write("apparmor.img"), "apparmor.img"},
		"rules of nftables":      {write("nftables-10.img"), "nftables-10.img"},
		"netlink of nftables":    {netlink(20, 10<<8), "type 0xa00"},
		"netlink without length": {netlink(3, 1<<8), "3 bytes"},
		"sysctls of the network": {write("netns-10.img", &netdev.NetnsEntry{DefConf: []int32{1}}), "field def_conf of netns_entry"},
		"another namespace":      {write("netns-10.img", &netdev.NetnsEntry{ExtKey: str("extRootPidNS")}), "extRootPidNS"},
		"name of the dump":       {dumpOf(func(d *dump) { d.inventory.DumpCriuRunId = str("x\ninclude \"/etc/shadow\"") }), "include"},
		"second inventory":       {write("ids-7.img", &criucore.TaskKobjIdsEntry{}, &criucore.TaskKobjIdsEntry{}), "more than 1 records"},
		"memory within memory":   {write("mm-7.img", &mm.MmEntry{Vmas: []*vma.VmaEntry{{Start: proto.Uint64(0), End: proto.Uint64(8192)}, {Start: proto.Uint64(4096), End: proto.Uint64(12288)}}}), "0x1000"},
		"memory of the kernel":   {write("mm-7.img", &mm.MmEntry{Vmas: []*vma.VmaEntry{{Start: proto.Uint64(1 << 63), End: proto.Uint64(1<<63 + 4096)}}}), "memory from"},
		"bind by a flag":         {dumpOf(func(d *dump) { d.mounts[6].SbFlags, d.mounts[6].Source = n(0x1000), str("/") }), "0x1000"},
		"no flags":               {dumpOf(func(d *dump) { d.mounts[2].SbFlags = nil }), "without the flags"},
		"move by a flag":         {dumpOf(func(d *dump) { d.mounts[6].Flags = n(0x2000) }), "0x2000"},
		"deleted mount":          {dumpOf(func(d *dump) { d.mounts[6].Deleted = proto.Bool(true) }), "field deleted of mnt_entry"},
		"mount of a plugin":      {dumpOf(func(d *dump) { d.mounts[6].WithPlugin = proto.Bool(true) }), "field with_plugin of mnt_entry"},
		"unknown option":         {dumpOf(func(d *dump) { d.mounts[6].Options = str("size=65536k,context=x") }), "context=x"},
		"no credentials":         {write("core-7.img", &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadCore: &criucore.ThreadCoreEntry{}}), "without credentials"},
		"cgroup of nobody":       {dumpOf(func(d *dump) { d.cgroups.Sets[0].Ctls = d.cgroups.Sets[0].Ctls[:1] }), "in which no process is"},
		"cgroup's name cut":      {dumpOf(func(d *dump) { d.cgroups.Sets[0].Ctls[1].CgnsPrefix = n(3) }), "not its top"},
		"another hierarchy":      {dumpOf(func(d *dump) { d.cgroups.Controllers[0].Cnames[0] = "name=other" }), "name=other"},
		"sets that differ": {dumpOf(func(d *dump) {
			d.cgroups.Sets = append(d.cgroups.Sets, proto.CloneOf(d.cgroups.Sets[0]))
			d.cgroups.Sets[1].Ctls = d.cgroups.Sets[1].Ctls[:1]
		}), "others in"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			c.change(t, d, dir)
			var damaged *DamagedError
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{All}}, here); !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("Images = %v, want %q", err, c.words)
			}
		})
	}
}

// TestImagesThatAskForMore: what a container may have that was given it is asked for.
func TestImagesThatAskForMore(t *testing.T) {
	n := proto.Uint32
	thread := func(change func(*criucore.ThreadCoreEntry)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			tc := &criucore.ThreadCoreEntry{Creds: d.creds}
			change(tc)
			image(t, dir, "core-7.img", &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadCore: tc})
		}
	}
	mounts := func(change func(*dump)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			change(d)
			var all []proto.Message
			for _, m := range d.mounts {
				all = append(all, m)
			}
			image(t, dir, "mountpoints-12.img", all...)
		}
	}
	files := func(e *fdinfo.FileEntry) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) { image(t, dir, "files.img", e) }
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *dump, string)
		grant  Grant
		words  string
	}{
		"ambient capability": {thread(func(e *criucore.ThreadCoreEntry) { e.Creds.CapAmb = []uint32{1 << 21, 0} }), Capabilities, "CAP_SYS_ADMIN"},
		"privileges":         {thread(func(e *criucore.ThreadCoreEntry) { e.Creds.NoNewPrivs = nil }), Privileges, "no_new_privs"},
		"no filter": {func(t *testing.T, d *dump, _ string) {
			d.spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		}, Privileges, "seccomp"},
		"label":     {func(t *testing.T, d *dump, _ string) { d.spec.Process.ApparmorProfile = "cri-containerd.apparmor.d" }, Privileges, "label"},
		"real time": {thread(func(e *criucore.ThreadCoreEntry) { e.SchedPolicy = n(1) }), Privileges, "SCHED_FIFO"},
		"nice":      {thread(func(e *criucore.ThreadCoreEntry) { e.SchedNice = proto.Int32(-20) }), Privileges, "-20"},
		"users of the host": {func(t *testing.T, _ *dump, dir string) {
			image(t, dir, "userns-7.img", &userns.UsernsEntry{UidMap: []*userns.UidGidExtent{{Count: n(1)}}})
		}, Namespaces, "does not map"},
		"user namespace": {func(t *testing.T, d *dump, dir string) { d.ids.UserNsId = n(8); image(t, dir, "ids-7.img", d.ids) }, Namespaces, "user namespace"},
		"serial line": {func(t *testing.T, _ *dump, dir string) {
			image(t, dir, "tty-info.img", &tty.TtyInfoEntry{Type: tty.TtyType_SERIAL.Enum()})
		}, Devices, "SERIAL"},
		"part of a tmpfs": {mounts(func(d *dump) { d.mounts[6].Root = proto.String("/link/etc") }), Mounts, "/dev"},
		"part of a process": {mounts(func(d *dump) {
			d.mounts = append(d.mounts, mount(20, 2, mnt.Fstype_PROC, 1, "/self/root/etc", "/proc/self/root/etc", "proc", ""))
		}), Mounts, "/proc/self/root/etc"},
		"part of what is given": {mounts(func(d *dump) { d.mounts[8].Root, d.mounts[6].RootDev = proto.String("/"), d.mounts[8].RootDev }), Mounts, "/dev"},
		"read-only no more": {mounts(func(d *dump) {
			d.spec.Mounts[len(d.spec.Mounts)-1].Options = []string{"ro"}
		}), Mounts, "/data writable"},
		"shared":       {mounts(func(d *dump) { d.mounts[8].SharedId = n(4) }), Privileges, "propagation"},
		"slave":        {mounts(func(d *dump) { d.mounts[6].MasterId = n(4) }), Privileges, "propagation"},
		"larger tmpfs": {mounts(func(d *dump) { d.mounts[6].Options = proto.String("size=65g") }), Privileges, "65536k"},
		"mark":         {files(&fdinfo.FileEntry{Type: fdinfo.FdTypes_INETSK.Enum(), Isk: &skinet.InetSkEntry{Opts: &skopts.SkOptsEntry{SoMark: n(1)}}}), Capabilities, "CAP_NET_ADMIN"},
		"audit":        {files(&fdinfo.FileEntry{Type: fdinfo.FdTypes_NETLINKSK.Enum(), Nlsk: &sknetlink.NetlinkSkEntry{Protocol: n(9), Groups: []uint32{1}}}), Capabilities, "protocol 9"},
		"handle": {files(&fdinfo.FileEntry{Type: fdinfo.FdTypes_INOTIFY.Enum(), Ify: &fsnotify.InotifyFileEntry{Wd: []*fsnotify.InotifyWdEntry{{FHandle: &fh.FhEntry{}}}}}),
			Capabilities, "CAP_DAC_READ_SEARCH"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			c.change(t, d, dir)
			var refused *RefusedError
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{}, here); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), string(c.grant)+": ") {
				t.Errorf("Images = %v, want %q", err, c.words)
			}
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{c.grant}}, here); err != nil {
				t.Errorf("granted: %v", err)
			}
		})
	}
}
