package trust

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	filelock "github.com/checkpoint-restore/go-criu/v8/crit/images/file-lock"
	imagefs "github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	ipcmsg "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-msg"
	ipcsem "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-sem"
	ipcshm "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-shm"
	ipcvar "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-var"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pidns"
	pipedata "github.com/checkpoint-restore/go-criu/v8/crit/images/pipe-data"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	skpacket "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-packet"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/stats"
	tcpstream "github.com/checkpoint-restore/go-criu/v8/crit/images/tcp-stream"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/timens"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/tty"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/userns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/record"
)

// kind is one kind of image.
type kind struct {
	name   Pattern
	record proto.Message // nil: not of messages
	first  proto.Message // the first record, where it is another
	most   int           // records that CRIU reads
	length string        // field that says how much follows a record that is no record
	raw    bool          // what follows the first record is none
	review func(data []byte) error
}

func named(expression string) Pattern { return NewPattern(`^` + expression + `$`) }

// kinds are the images that a checkpoint of cryo's CRIU writes, with what runc and cryo put beside them. CRIU looks for others as well: for those of
// its old formats, for policies of AppArmor, for devices and rules of networks, which runc has it leave alone, and for kinds of objects that
// this table does not have. Source: CRIU 4.2, criu/image-desc.c, and criu/protobuf-desc.c.
var kinds = []kind{
	{name: named(`inventory\.img`), record: &inventory.InventoryEntry{}, most: 1},
	{name: named(`pstree\.img`), record: &pstree.PstreeEntry{}},
	{name: named(`core-[0-9]+\.img`), record: &criucore.CoreEntry{}, most: 1},
	{name: named(`ids-[0-9]+\.img`), record: &criucore.TaskKobjIdsEntry{}, most: 1},
	{name: named(`mm-[0-9]+\.img`), record: &mm.MmEntry{}, most: 1},
	{name: named(`fs-[0-9]+\.img`), record: &imagefs.FsEntry{}, most: 1},
	{name: named(`fdinfo-[0-9]+\.img`), record: &fdinfo.FdinfoEntry{}},
	{name: named(`pagemap-(shmem-)?[0-9]+\.img`), first: &pagemap.PagemapHead{}, record: &pagemap.PagemapEntry{}},
	{name: named(`pages-(shmem-)?[0-9]+\.img`)},
	{name: named(`seccomp\.img`), record: &seccomp.SeccompEntry{}, most: 1},
	{name: named(`files\.img`), record: &fdinfo.FileEntry{}},
	{name: named(`remap-fpath\.img`), record: &remapfile.RemapFilePathEntry{}},
	{name: named(`ghost-file-[0-9a-f]+\.img`), record: &ghostfile.GhostFileEntry{}, raw: true},
	{name: named(`filelocks\.img`), record: &filelock.FileLockEntry{}},
	{name: named(`memfd\.img`), record: &memfd.MemfdInodeEntry{}},
	{name: named(`(pipes|fifo)-data\.img`), record: &pipedata.PipeDataEntry{}, length: "bytes"},
	{name: named(`sk-queues\.img`), record: &skpacket.SkPacketEntry{}, length: "length"},
	{name: named(`tcp-stream-[0-9a-f]+\.img`), record: &tcpstream.TcpStreamEntry{}, raw: true},
	{name: named(`tty-info\.img`), record: &tty.TtyInfoEntry{}},
	{name: named(`tty-data\.img`), record: &tty.TtyDataEntry{}},
	{name: named(`mountpoints-[0-9]+\.img`), record: &mnt.MntEntry{}, most: maxMounts},
	{name: tmpfsImage},
	{name: named(`utsns-[0-9]+\.img`), record: &utsns.UtsnsEntry{}, most: 1},
	{name: named(`ipcns-var-[0-9]+\.img`), record: &ipcvar.IpcVarEntry{}, most: 1},
	{name: named(`ipcns-shm-[0-9]+\.img`), record: &ipcshm.IpcShmEntry{}, raw: true},
	{name: named(`ipcns-msg-[0-9]+\.img`), record: &ipcmsg.IpcMsgEntry{}, raw: true},
	{name: named(`ipcns-sem-[0-9]+\.img`), record: &ipcsem.IpcSemEntry{}, raw: true},
	{name: named(`userns-[0-9]+\.img`), record: &userns.UsernsEntry{}, most: 1},
	{name: named(`pidns-[0-9]+\.img`), record: &pidns.PidnsEntry{}, most: 1},
	{name: named(`timens-[0-9]+\.img`), record: &timens.TimensEntry{}, most: 1},
	{name: named(`netns-[0-9]+\.img`), record: &netdev.NetnsEntry{}, most: 1},
	{name: named(`netns-(ct|exp)-[0-9]+\.img`), review: tracked},
	{name: named(`cgroup\.img`), record: &cgroup.CgroupEntry{}, most: 1},
	{name: named(`stats-dump(\.img)?`), record: &stats.StatsEntry{}, most: 1},
	{name: named(`descriptors\.json`), review: descriptors},
	{name: named(`cryo\.json`), review: options},
	{name: named(`cryo-gpu\.json`)},      // package runtime/gpu reviews it, and it must agree with the snapshot's config
	{name: named(`cryo-snapshot\.json`)}, // of a stock client's checkpoint: where the snapshot was sent. A restore does not read it
}

// Parent is where CRIU looks for memory that is not here: a link to a directory. Source: CRIU 4.2, criu/pagemap.c.
const Parent = "parent"

// names refuses images that no checkpoint writes, and messages and fields in them that fields.tsv does not have.
func (r *imageReviewer) names() error {
	entries, err := fs.ReadDir(r.images, ".")
	if err != nil {
		return fmt.Errorf("list CRIU images: %w", err)
	}
	all := 0
	for _, e := range entries {
		if e.Name() == Parent {
			if info, err := fs.Stat(r.images, Parent); err == nil && info.IsDir() {
				continue
			}
		}
		k := kindOf(e.Name())
		if k == nil || !e.Type().IsRegular() {
			return &DamagedError{File: fmt.Sprintf("%q", e.Name()), Err: errors.New("a checkpoint writes no such image")}
		}
		if k.record == nil && k.review == nil {
			continue
		}
		data, err := readImage(r.images, e.Name(), k.raw)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if all += len(data); err == nil && all > MaxReviewed {
			err = fmt.Errorf("with the images before it more than %d bytes", MaxReviewed)
		}
		if err == nil {
			err = k.check(data)
		}
		if err != nil {
			return &DamagedError{File: e.Name(), Err: err}
		}
	}
	return nil
}

// Reviewed returns how many bytes of an image the review reads at most; 0: it goes by the name alone.
func Reviewed(name string) int64 {
	switch k := kindOf(name); {
	case k == nil || k.record == nil && k.review == nil:
		return 0
	case k.raw:
		return maxFirst
	}
	return format.MaxImage + 1
}

// Unpacked reports whether an image is one of a file system in memory, which is looked through in whole, though not held.
func Unpacked(name string) bool { return tmpfsImage.MatchString(name) }

var tmpfsImage = named(`tmpfs-(dev-)?[0-9]+\.tar\.gz\.img`)

func kindOf(name string) *kind {
	for i := range kinds {
		if kinds[i].name.MatchString(name) {
			return &kinds[i]
		}
	}
	return nil
}

// check reviews what an image is made of; what that says, others review.
func (k *kind) check(data []byte) error {
	if k.review != nil {
		return k.review(data)
	}
	_, data, err := format.ImageBody(data)
	if err != nil {
		return err
	}
	most := k.most
	if most == 0 {
		most = maxRecords
	}
	for n := 0; len(data) > 0; n++ {
		if n == most {
			return fmt.Errorf("more than %d records", most)
		}
		var record []byte
		if record, data, err = format.NextRecord(data); err != nil {
			return err
		}
		message := k.record
		if n == 0 && k.first != nil {
			message = k.first
		}
		d := message.ProtoReflect().Descriptor()
		if err := allowed(d, record); err != nil {
			return err
		}
		if k.raw {
			return nil
		}
		if k.length != "" {
			m := message.ProtoReflect().New()
			if err := proto.Unmarshal(record, m.Interface()); err != nil {
				return err
			}
			length := m.Get(d.Fields().ByName(protoName(k.length))).Uint()
			if length > uint64(len(data)) {
				return errors.New("ends within what a record says that follows")
			}
			data = data[length:]
		}
	}
	return nil
}

// descriptors reviews what runc takes for the container's standard streams: for each entry that is a pipe it gives its own descriptor of that number
// to CRIU, and there are only three that are streams. Source: runc, libcontainer/criu_linux.go.
func descriptors(data []byte) error {
	const streams = 3
	var all []string
	if err := format.SmallJSON.Unmarshal(data, &all); err != nil {
		return err
	}
	if len(all) > streams {
		return fmt.Errorf("%d standard streams", len(all))
	}
	return nil
}

// options reviews the choices of the dump, which are options of CRIU's.
func options(data []byte) error {
	_, err := record.ParseChoices(data)
	return err
}

// choices asks for those that give more than a container has.
func (r *imageReviewer) choices() error {
	data, err := readImage(r.images, record.ChoicesFile, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := record.ParseChoices(data)
	if err != nil {
		return &DamagedError{File: record.ChoicesFile, Err: err}
	}
	if c.ExternalSockets {
		r.ask(Privileges, "connections to unix sockets outside of the container (--ext-unix-sk), which CRIU makes as root")
	}
	return nil
}

// tracked reviews messages of netlink, which CRIU gives to the kernel as root: connections that are tracked, and expected ones, in the form that the
// kernel told them. Source: CRIU 4.2, criu/net.c, restore_nf_ct; linux/netfilter/nfnetlink.h.
func tracked(data []byte) error {
	const (
		header = 20 // of netlink and of netfilter
		newCT  = 1 << 8
		newExp = 2 << 8
	)
	_, data, err := format.ImageBody(data)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		if len(data) < header {
			return errors.New("ends within a message of netlink")
		}
		n, message := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint16(data[4:])
		if n < header || uint64(n) > uint64(len(data)) {
			return fmt.Errorf("a message of netlink of %d bytes", n)
		}
		if message != newCT && message != newExp {
			return fmt.Errorf("a message of netlink of type %#x, which tells of no connection", message)
		}
		data = data[n:]
	}
	return nil
}
