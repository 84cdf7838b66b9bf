package integration

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	filelock "github.com/checkpoint-restore/go-criu/v8/crit/images/file-lock"
	imagefs "github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	ipcvar "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-var"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/timens"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// mutable are the images that the fuzzer takes apart; the first ones hold the most power, and are taken more often.
var mutable = []struct {
	name   *regexp.Regexp
	weight int
	record proto.Message
}{
	{regexp.MustCompile(`^mountpoints-`), 8, &mnt.MntEntry{}},
	{regexp.MustCompile(`^files\.img`), 8, &fdinfo.FileEntry{}},
	{regexp.MustCompile(`^cgroup\.img`), 4, &cgroup.CgroupEntry{}},
	{regexp.MustCompile(`^core-`), 4, &criucore.CoreEntry{}},
	{regexp.MustCompile(`^remap-fpath`), 3, &remapfile.RemapFilePathEntry{}},
	{regexp.MustCompile(`^inventory`), 2, &inventory.InventoryEntry{}},
	{regexp.MustCompile(`^ids-`), 2, &criucore.TaskKobjIdsEntry{}},
	{regexp.MustCompile(`^fdinfo-`), 2, &fdinfo.FdinfoEntry{}},
	{regexp.MustCompile(`^fs-`), 2, &imagefs.FsEntry{}},
	{regexp.MustCompile(`^mm-`), 1, &mm.MmEntry{}},
	{regexp.MustCompile(`^pstree`), 1, &pstree.PstreeEntry{}},
	{regexp.MustCompile(`^filelocks`), 1, &filelock.FileLockEntry{}},
	{regexp.MustCompile(`^ipcns-var`), 1, &ipcvar.IpcVarEntry{}},
	{regexp.MustCompile(`^utsns`), 1, &utsns.UtsnsEntry{}},
	{regexp.MustCompile(`^timens`), 1, &timens.TimensEntry{}},
}

// mutate copies the images and changes one to three things in them; it says what.
func (f *fuzzed) mutate(t *testing.T, rng *rand.Rand, dir, canaries string) (what []string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	type choice struct {
		path   string
		record proto.Message
	}
	var choices []choice
	for _, e := range entries {
		for _, m := range mutable {
			for range m.weight {
				if m.name.MatchString(e.Name()) {
					choices = append(choices, choice{filepath.Join(dir, e.Name()), m.record})
				}
			}
		}
	}
	hostile := []string{canaries, "/", "..", "/..", "", "/etc", "/proc/1/root" + canaries, "/proc/self/root/etc", "/hostile", "/hostile/x", "/hostile/canary", "/run/hostile/x", "/dev/shm/hostile" + canaries + "/x",
		"/slash" + canaries + "/made", "hostile", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup", "/dev/kmsg", "/dev/vda", "extRootNetNS", "rw", "size=1g", "release_agent", "/dev/null", "/dev/mem"}
	if rng.IntN(8) == 0 {
		what = append(what, redirect(t, rng, dir))
	}
	for range 1 + rng.IntN(3) - len(what) {
		c := choices[rng.IntN(len(choices))]
		what = append(what, filepath.Base(c.path)+": "+mutateImage(t, rng, c.path, c.record, hostile))
	}
	return what
}

// redirect has a process open another file, of which what CRIU compares is right: one of the kernel's, or of a mount that was granted.
func redirect(t *testing.T, rng *rand.Rand, dir string) (what string) {
	t.Helper()
	targets := []struct {
		at, name string
		mode     uint32
	}{
		{"/proc", "/proc/kmsg", 0o100400}, {"/proc", "/proc/kallsyms", 0o100444}, {"/proc", "/proc/1/pagemap", 0o100400}, {"/proc", "/proc/1/stack", 0o100400}, {"/proc", "/proc/modules", 0o100444},
		{grantedAt, grantedAt + "/secret", 0o100600}, {grantedAt, grantedAt + "/x/canary", 0o100640}, {"/dev", "/dev/kmsg", 0o020644},
	}
	target := targets[rng.IntN(len(targets))]
	var on *int32
	rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
		for _, e := range all {
			if e.GetMountpoint() == target.at {
				on = proto.Int32(int32(e.GetMntId()))
			}
		}
		return all
	})
	rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
		var files []*regfile.RegFileEntry
		for _, e := range all {
			if e.GetReg() != nil && e.GetReg().GetMode()&0o170000 == 0o100000 {
				files = append(files, e.GetReg())
			}
		}
		if len(files) == 0 || on == nil {
			what = "nothing"
			return all
		}
		f := files[rng.IntN(len(files))]
		what = fmt.Sprintf("files.img: %s is %s", f.GetName(), target.name)
		f.Name, f.MntId, f.Mode, f.Size = &target.name, on, &target.mode, nil
		if rng.IntN(4) > 0 { // read, from its beginning
			f.Flags, f.Pos = proto.Uint32(0), proto.Uint64(0)
		}
		return all
	})
	return what
}

// mutateImage changes one thing in an image.
func mutateImage(t *testing.T, rng *rand.Rand, path string, record proto.Message, hostile []string) (what string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, word := 8, 4
	if filepath.Base(path) == "inventory.img" {
		head = word
	}
	var all []protoreflect.Message
	for rest := data[head:]; len(rest) > 0; {
		n := binary.LittleEndian.Uint32(rest)
		m := record.ProtoReflect().New()
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(rest[word:word+int(n)], m.Interface()); err != nil {
			t.Fatal(err)
		}
		all, rest = append(all, m), rest[word+int(n):]
	}
	if len(all) == 0 {
		return "empty"
	}
	i, j := rng.IntN(len(all)), rng.IntN(len(all))
	switch rng.IntN(12) {
	case 0:
		what, all = fmt.Sprintf("record %d twice", i), append(all, proto.Clone(all[i].Interface()).ProtoReflect())
	case 1:
		what, all = fmt.Sprintf("without record %d", i), append(all[:i:i], all[i+1:]...)
	case 2:
		what = fmt.Sprintf("records %d and %d exchanged", i, j)
		all[i], all[j] = all[j], all[i]
	default:
		what = fmt.Sprintf("record %d: %s", i, mutateMessage(rng, all[i], all[j], hostile))
	}
	out := data[:head:head]
	for _, m := range all {
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m.Interface())
		if err != nil {
			return what + " (not written)"
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return what
}

// place is a field of a message, or of one in it; other is a message of the same kind, whose values are valid elsewhere.
type place struct {
	m, other protoreflect.Message
	field    protoreflect.FieldDescriptor
	path     string
}

// placesIn lists the fields of a message and of those in it, of a list those of one element: each is as likely to be changed, however deep it is.
func placesIn(rng *rand.Rand, m, other protoreflect.Message, path string) (all []place) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := path + string(f.Name())
		all = append(all, place{m, other, f, at})
		if f.Kind() != protoreflect.MessageKind || !m.Has(f) {
			continue
		}
		if f.IsList() {
			list := m.Mutable(f).List()
			n := list.Len()
			all = append(all, placesIn(rng, list.Get(rng.IntN(n)).Message(), list.Get(rng.IntN(n)).Message(), at+": ")...)
			continue
		}
		from := m.Get(f).Message()
		if other.Has(f) {
			from = other.Get(f).Message()
		}
		all = append(all, placesIn(rng, m.Mutable(f).Message(), from, at+": ")...)
	}
	return all
}

// processors are messages with a process's registers, signals and timers: hundreds of fields that give it nothing. They are rarely changed.
var processors = regexp.MustCompile(`^(user_|thread_info_|rseq_|sa_|itimer_|posix_timer|siginfo_|signal_queue|vma_)`)

// powers are messages whose fields are about what a process may, with how much likelier they are to be changed.
var powers = map[protoreflect.Name]int{"creds_entry": 4, "thread_core_entry": 2, "mnt_entry": 2, "task_kobj_ids_entry": 2, "cg_member_entry": 2}

// mutateMessage changes a field of a message, or of one in it.
func mutateMessage(rng *rand.Rand, m, other protoreflect.Message, hostile []string) (what string) {
	var all []place
	rare := rng.IntN(20) == 0
	for _, p := range placesIn(rng, m, other, "") {
		name := p.m.Descriptor().Name()
		for range max(1, powers[name]) {
			if rare || !processors.MatchString(string(name)) {
				all = append(all, p)
			}
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	p := all[rng.IntN(len(all))]
	return p.path + " " + p.mutate(rng, hostile)
}

func (p place) mutate(rng *rand.Rand, hostile []string) (what string) {
	m, f := p.m, p.field
	switch {
	case f.IsList():
		list := m.Mutable(f).List()
		switch n := list.Len(); {
		case n > 0 && rng.IntN(3) == 0:
			list.Truncate(n - 1)
			return "shorter"
		case n > 0 && rng.IntN(2) == 0 && f.Kind() == protoreflect.MessageKind:
			list.Append(protoreflect.ValueOfMessage(proto.Clone(list.Get(rng.IntN(n)).Message().Interface()).ProtoReflect()))
			return "longer"
		case f.Kind() == protoreflect.MessageKind:
			fill(rng, list.AppendMutable().Message(), hostile, 0)
			return "longer by a new one"
		case n > 0 && rng.IntN(4) > 0:
			i := rng.IntN(n)
			list.Set(i, scalar(rng, f, list.Get(i), hostile))
			return fmt.Sprintf("changed to %v", list.Get(i))
		default:
			list.Append(scalar(rng, f, list.NewElement(), hostile))
			return "longer"
		}
	case f.Kind() == protoreflect.MessageKind && m.Has(f):
		m.Clear(f)
		return "gone"
	case f.Kind() == protoreflect.MessageKind:
		fill(rng, m.Mutable(f).Message(), hostile, 0)
		return "new"
	case p.other.Has(f) && rng.IntN(3) == 0:
		m.Set(f, p.other.Get(f))
		return "as in another: " + p.other.Get(f).String()
	case m.Has(f) && f.Cardinality() == protoreflect.Optional && rng.IntN(6) == 0:
		m.Clear(f)
		return "gone"
	}
	v := scalar(rng, f, m.Get(f), hostile)
	m.Set(f, v)
	return fmt.Sprintf("= %.80q", v.String())
}

// fill gives a new message values.
func fill(rng *rand.Rand, m protoreflect.Message, hostile []string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Cardinality() != protoreflect.Required && rng.IntN(3) > 0 || depth > 3 {
			continue
		}
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			fill(rng, m.Mutable(f).List().AppendMutable().Message(), hostile, depth+1)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(rng, f, m.Mutable(f).List().NewElement(), hostile))
		case f.Kind() == protoreflect.MessageKind:
			fill(rng, m.Mutable(f).Message(), hostile, depth+1)
		default:
			m.Set(f, scalar(rng, f, m.Get(f), hostile))
		}
	}
}

// scalar returns another value for a field: near the old one, a small one, one at a border of its type, or text that attacks use.
func scalar(rng *rand.Rand, f protoreflect.FieldDescriptor, old protoreflect.Value, hostile []string) protoreflect.Value {
	borders := []uint64{0, 1, 2, 3, 4, 7, 16, 0o100, 0o1000, 0x1000, 0x2000, 0x4000, 1 << 20, math.MaxInt32, math.MaxUint32, math.MaxInt64, math.MaxUint64, 1 << 31, 1 << 63}
	number := func(was uint64) uint64 {
		switch rng.IntN(4) {
		case 0:
			return was + 1
		case 1:
			return was ^ 1<<rng.IntN(32)
		case 2:
			return uint64(rng.IntN(64))
		}
		return borders[rng.IntN(len(borders))]
	}
	text := hostile[rng.IntN(len(hostile))]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!old.Bool())
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(rng.IntN(values.Len())).Number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(number(uint64(old.Int()))))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(number(uint64(old.Int()))))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number(old.Uint())))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(number(old.Uint()))
	case protoreflect.StringKind:
		if rng.IntN(3) == 0 {
			text = old.String() + text
		}
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		if rng.IntN(3) == 0 {
			text = string(old.Bytes()) + text
		}
		return protoreflect.ValueOfBytes([]byte(text))
	}
	return old
}
