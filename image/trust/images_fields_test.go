package trust

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fh"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fsnotify"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pipe"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	sknetlink "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-netlink"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	skunix "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/timer"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/tty"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/userns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestFields: the table has a line for each field of each message of CRIU's that go-criu has, and no others. A function that is to decide is there.
func TestFields(t *testing.T) {
	known := map[string]bool{} // message.field
	whole := map[string]bool{} // messages that are refused
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range sources {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(data)
	}
	kinds := []string{"harmless", "own", "rule", "anew", refused}
	for line := range strings.Lines(fieldsTable) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(columns) < 3 || len(columns) > 5 || !slices.Contains(kinds, columns[2]) {
			t.Errorf("a line without its columns: %q", line)
			continue
		}
		name := columns[0] + "." + columns[1]
		if known[name] {
			t.Errorf("%s is there twice", name)
		}
		if known[name] = true; columns[1] == "*" {
			whole[columns[0]] = columns[2] == refused
		}
		last := ""
		if len(columns) == 5 {
			last = columns[4]
		}
		if last == "" && (columns[2] == refused || columns[2] == "anew" || columns[2] == "rule") {
			t.Errorf("%s: nothing says why, or what decides", name)
		}
		if columns[2] == "rule" {
			for function := range strings.SplitSeq(last, ", ") {
				if !regexp.MustCompile(`func (\([a-z]+ [*a-zA-Z]+\) )?` + function + `\(`).MatchString(code.String()) {
					t.Errorf("%s: there is no function %s", name, function)
				}
			}
		}
	}
	for message, fields := range protos(t) {
		for _, field := range fields {
			if !known[message+"."+field] && !whole[message] {
				t.Errorf("no line is about the field %s of %s", field, message)
			}
			delete(known, message+"."+field)
		}
		delete(known, message+".*")
	}
	for name := range known {
		t.Errorf("a line is about %s, which CRIU does not have", name)
	}
	for name, fields := range reviewed() {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for field, b := range fields {
			f := found.(protoreflect.MessageDescriptor).Fields().ByName(field)
			if f != nil && f.Kind() == protoreflect.MessageKind && reviewed()[f.Message().Name()] == nil {
				t.Errorf("%s has a %s, which is refused", name, f.Message().Name())
			}
			if b.bounded && b.min > b.max {
				t.Errorf("the bounds of %s of %s are none", field, name)
			}
		}
	}
}

// protos reads the messages of go-criu's sources, with their fields.
func protos(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/checkpoint-restore/go-criu/v8/crit/images/mnt").Output()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "*.proto"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no protos: %v", err)
	}
	comments := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	messages := regexp.MustCompile(`(?s)message\s+(\w+)\s*\{(.*?)\n\}`)
	fields := regexp.MustCompile(`(?:required|optional|repeated)\s+[\w.]+\s+(\w+)\s*=`)
	all := map[string][]string{}
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages.FindAllStringSubmatch(comments.ReplaceAllString(string(data), ""), -1) {
			all[m[1]] = []string{}
			for _, f := range fields.FindAllStringSubmatch(m[2], -1) {
				all[m[1]] = append(all[m[1]], f[1])
			}
		}
	}
	const least = 150 // as many as there were
	if len(all) < least {
		t.Fatalf("%d messages", len(all))
	}
	return all
}

// TestBounds: numbers, lengths and counts beyond what the table says are refused, and those at its bounds are not.
func TestBounds(t *testing.T) {
	const varint, text = protowire.VarintType, protowire.BytesType
	number := func(n uint64) []byte { return protowire.AppendVarint(nil, n) }
	packed := func(n int) []byte { return protowire.AppendBytes(nil, bytes.Repeat([]byte{0x80, 1}, n)) }
	for _, c := range []struct {
		message proto.Message
		field   protoName
		wire    protowire.Type
		times   int
		value   []byte
		ok      bool
	}{
		{&criucore.ThreadCoreEntry{}, "sched_nice", varint, 1, number(protowire.EncodeZigZag(-20)), true},
		{&criucore.ThreadCoreEntry{}, "sched_nice", varint, 1, number(protowire.EncodeZigZag(-21)), false},
		{&criucore.ThreadCoreEntry{}, "sched_nice", varint, 1, number(protowire.EncodeZigZag(20)), false},
		{&criucore.ThreadCoreEntry{}, "sched_prio", varint, 1, number(99), true},
		{&criucore.ThreadCoreEntry{}, "sched_prio", varint, 1, number(math.MaxUint32), false},
		{&criucore.TaskCoreEntry{}, "oom_score_adj", varint, 1, number(math.MaxUint64 - 999), true}, // -1000
		{&criucore.TaskCoreEntry{}, "oom_score_adj", varint, 1, number(math.MaxUint64 - 1000), false},
		{&timer.PosixTimerEntry{}, "it_id", varint, 1, number(1 << 20), true},
		{&timer.PosixTimerEntry{}, "it_id", varint, 1, number(1<<20 + 1), false},
		{&pagemap.PagemapEntry{}, "nr_pages", varint, 1, number(1 << 40), true},
		{&pagemap.PagemapEntry{}, "nr_pages", varint, 1, number(math.MaxUint64), false},
		{&creds.CredsEntry{}, "groups", varint, 65536, number(7), true},
		{&creds.CredsEntry{}, "groups", varint, 65537, number(7), false},
		{&creds.CredsEntry{}, "groups", text, 1, packed(65536), true},
		{&creds.CredsEntry{}, "groups", text, 1, packed(65537), false},
		{&utsns.UtsnsEntry{}, "nodename", text, 1, protowire.AppendString(nil, strings.Repeat("a", 64)), true},
		{&utsns.UtsnsEntry{}, "nodename", text, 1, protowire.AppendString(nil, strings.Repeat("a", 65)), false},
		{&seccomp.SeccompFilter{}, "filter", text, 1, protowire.AppendBytes(nil, make([]byte, 32769)), false},
	} {
		d := c.message.ProtoReflect().Descriptor()
		data := bytes.Repeat(append(protowire.AppendTag(nil, d.Fields().ByName(c.field).Number(), c.wire), c.value...), c.times)
		if err := allowed(d, data); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "and may be") {
			t.Errorf("%s, %d times %x: %v", c.field, c.times, c.value[:min(len(c.value), 10)], err)
		}
	}
}

// TestForgedFields: what a message may not hold is refused whatever was granted, by its name.
func TestForgedFields(t *testing.T) {
	str, n := proto.String, proto.Uint32
	write := func(name string, records ...proto.Message) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) { writeImage(t, dir, name, records...) }
	}
	// more appends bytes to an image's last record.
	more := func(name string, record proto.Message, b []byte) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) {
			writeImage(t, dir, name, record)
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
			for _, name := range []string{"mountpoints-303.img", "inventory.img", "cgroup.img"} {
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
		"socket of CRIU's":       {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{Uflags: n(4)}}), "flags 0x4"},
		"file of no kind":        {write("files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_PIPE.Enum()}), "no more of it"},
		"policies of AppArmor":   {write("apparmor.img"), "apparmor.img"},
		"rules of nftables":      {write("nftables-10.img"), "nftables-10.img"},
		"netlink of nftables":    {netlink(20, 10<<8), "type 0xa00"},
		"netlink without length": {netlink(3, 1<<8), "3 bytes"},
		"sysctls of the network": {write("netns-400.img", &netdev.NetnsEntry{DefConf: []int32{1}}), "field def_conf of netns_entry"},
		"another namespace":      {write("netns-400.img", &netdev.NetnsEntry{ExtKey: str("extRootPidNS")}), "extRootPidNS"},
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
			writeImage(t, dir, "core-7.img", &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadCore: tc})
		}
	}
	mounts := func(change func(*dump)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			change(d)
			var all []proto.Message
			for _, m := range d.mounts {
				all = append(all, m)
			}
			writeImage(t, dir, "mountpoints-303.img", all...)
		}
	}
	files := func(e *fdinfo.FileEntry) func(*testing.T, *dump, string) {
		return func(t *testing.T, _ *dump, dir string) { writeImage(t, dir, "files.img", e) }
	}
	kernelFile := func(name string, mount int32, flags uint32) func(*testing.T, *dump, string) {
		f := reg(name)
		f.Reg.MntId, f.Reg.Flags = &mount, &flags
		return files(f)
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
			writeImage(t, dir, "userns-7.img", &userns.UsernsEntry{UidMap: []*userns.UidGidExtent{{Count: n(1)}}})
		}, Namespaces, "does not map"},
		"user namespace": {func(t *testing.T, d *dump, dir string) {
			d.ids.UserNsId = n(8)
			writeImage(t, dir, "ids-1.img", d.ids)
			writeImage(t, dir, "ids-7.img", d.ids)
		}, Namespaces, "user namespace"},
		"serial line": {func(t *testing.T, _ *dump, dir string) {
			writeImage(t, dir, "tty-info.img", &tty.TtyInfoEntry{Type: tty.TtyType_SERIAL.Enum()})
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
		"socket of the host's": {func(t *testing.T, d *dump, dir string) {
			d.spec.Process.User = specs.User{UID: 1000, GID: 1000}
			writeImage(t, dir, "files.img", &fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{Name: []byte("/run/docker.sock\x00"), Uflags: n(1)}})
		}, Privileges, "/run/docker.sock"},
		"kernel log":                {kernelFile("/proc/kmsg", 2, 0), Privileges, "/proc/kmsg"},
		"stack":                     {kernelFile("/proc/1/stack", 2, 0), Privileges, "/proc/1/stack"},
		"by another mount's number": {kernelFile("/proc/kmsg", 1, 0), Privileges, "/proc/kmsg"},
		"by another mount's path":   {kernelFile("/kallsyms", 2, 0), Privileges, "/kallsyms"},
		"sysctl, written":           {kernelFile("/proc/sys/kernel/core_pattern", 3, 2), Privileges, "core_pattern"},
		"sysfs":                     {kernelFile("/sys/kernel/notes", 5, 0), Privileges, "/sys/kernel/notes"},
		"handle": {files(&fdinfo.FileEntry{Type: fdinfo.FdTypes_INOTIFY.Enum(), Ify: &fsnotify.InotifyFileEntry{Wd: []*fsnotify.InotifyWdEntry{{FHandle: &fh.FhEntry{}}}}}),
			Capabilities, "CAP_DAC_READ_SEARCH"},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			c.change(t, d, dir)
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{}, here); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), string(c.grant)+": ") {
				t.Errorf("Images = %v, want %q", err, c.words)
			}
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{c.grant}}, here); err != nil {
				t.Errorf("granted: %v", err)
			}
		})
	}
}
