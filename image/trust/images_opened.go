package trust

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// openedRule is the name of the rule of [Opened].
const openedRule = "opened-files"

// Opened returns an error, a [*DamagedError], if a file that CRIU is to open is of another kind than the images say, is not there, or is reached by a link out of the
// container, in the root file system as it will be: the images and spec say what is mounted there. Opening a FIFO
// waits until its other end is opened.
func Opened(images fs.FS, at Files, spec *specs.Spec) error {
	o, err := openedIn(images)
	if err != nil {
		return err
	}
	namespaces, err := files(images, "mountpoints-*.img")
	if err != nil {
		return err
	}
	w := walk{images: images, files: at, spec: spec, tmpfs: map[string]map[string]entry{}}
	for _, name := range namespaces {
		entries, err := read[mnt.MntEntry](images, name)
		if err != nil {
			return err
		}
		roots := rootsOf(entries)
		if len(roots) == 0 {
			continue
		}
		t := newMountTree(roots[0], entries)
		w.seen = map[mountPlace]entry{}
		for _, f := range o.files {
			if err := w.review(t, f, o); err != nil {
				return &DamagedError{Rule: openedRule, File: "files.img", Err: err}
			}
		}
	}
	return nil
}

// review walks the paths of an open file.
func (w *walk) review(t mountTree, f *fdinfo.FileEntry, o opened) error {
	want := o.kind[f.GetId()]
	if o.deleted[f.GetId()] {
		want = unknown
	}
	for _, name := range namesOf(f) {
		e, err := w.to(t, name)
		got := e.kind
		switch {
		case err != nil:
			return fmt.Errorf("%q: %w", name, err)
		case f.GetReg() == nil, want == unknown, got == unknown:
		case got == missing:
			return fmt.Errorf("%q is open, and is not in the root file system", name)
		case got != want:
			return fmt.Errorf("%q is %s, and open as %s", name, kindName(got), kindName(want))
		case e.device != "" && !w.mayOpen(e.device):
			return fmt.Errorf("%q is open, the device %s, which the specification does not have", name, e.device)
		}
	}
	return nil
}

// mayOpen reports whether a restored container may have a device of a tmpfs open. It may if every container has the device, or if its specification allows access to it. CRIU, not the container, opens it.
func (w *walk) mayOpen(device string) bool {
	l := w.spec.Linux
	if slices.Contains(everyDevice, device) {
		return true
	}
	if l == nil {
		return false
	}
	kind, numbers := device[:1], device[1:]
	number := func(n *int64) string {
		if n == nil || *n < 0 {
			return "*"
		}
		return strconv.FormatInt(*n, 10)
	}
	major, minor, _ := strings.Cut(numbers, ":")
	if l.Resources != nil {
		for _, d := range slices.Backward(l.Resources.Devices) { // the last rule about it decides
			of, a, b := cmp.Or(d.Type, "a"), number(d.Major), number(d.Minor)
			if (of == "a" || of == kind) && (a == "*" || a == major) && (b == "*" || b == minor) && strings.ContainsAny(cmp.Or(d.Access, "rwm"), "rw") {
				return d.Allow
			}
		}
	}
	return slices.ContainsFunc(l.Devices, func(d specs.LinuxDevice) bool {
		return (d.Type == "b") == (kind == "b") && numbers == fmt.Sprintf("%d:%d", d.Major, d.Minor)
	})
}

// everyDevice are null, zero, full, random, urandom, tty, console and ptmx.
var everyDevice = []string{"c1:3", "c1:5", "c1:7", "c1:8", "c1:9", "c5:0", "c5:1", "c5:2"}

// namesOf are the paths of an open file: its own, that of a socket, which CRIU makes, and those that are watched.
func namesOf(f *fdinfo.FileEntry) (names []string) {
	if reg := f.GetReg(); reg != nil {
		names = append(names, reg.GetName())
	}
	if s := f.GetUsk(); len(s.GetName()) > 0 && s.GetName()[0] != 0 { // else it is abstract
		name := strings.TrimSuffix(string(s.GetName()), "\x00")
		if !path.IsAbs(name) {
			name = path.Join("/", s.GetNameDir(), name)
		}
		names = append(names, name)
	}
	for _, wd := range f.GetIfy().GetWd() {
		names = append(names, clean(wd.GetFHandle().GetPath()))
	}
	for _, mark := range f.GetFfy().GetMark() {
		names = append(names, clean(mark.GetIe().GetFHandle().GetPath()), clean(mark.GetMe().GetPath()))
	}
	return names
}

// magic are the paths below /proc whose links lead out of any root: to what CRIU itself has open, among others. No file that is open has such a name: the
// kernel returns names without links.
var magic = NewPattern(`^/([0-9]+|self|thread-self)(/task/[0-9]+)?/((cwd|root|exe)(/|$)|(fd|map_files|ns)/)`)

// Kinds of files beside those of stat(2).
const (
	missing uint32 = 0
	unknown uint32 = 1 // the kernel makes it, or CRIU
	hard    uint32 = 2 // another name
)

func kindName(kind uint32) string {
	switch kind {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return fmt.Sprintf("of kind %o", kind)
}

// walk follows paths through the container's mounts as they will be, links included.
type walk struct {
	images fs.FS
	files  Files
	spec   *specs.Spec
	tmpfs  map[string]map[string]entry // what is in each image of one, by its path there
	seen   map[mountPlace]entry        // what was on the way, by its mount and path; of one tree
	unzip  int64                       // bytes of images of tmpfs that were looked through
	spent  int                         // what walking has cost, see maxSpent
}

// What an open file may cost is bounded in sum: names may be as long as 4 KiB, of thousands of directories.
const (
	maxSpent   = 1 << 30 // bytes of paths
	lookCosts  = 2048    // as many bytes: a review in a sandbox asks for it
	maxEntries = 2 << 20 // of a tmpfs
)

var errPaths = errors.New("the paths of all open files are too long")

// entry is what is in an image of a tmpfs.
type entry struct {
	kind   uint32
	target string
	device string // its kind and numbers, for example c1:3; empty if it is none, or not known
}

// maxLinks are as many as the kernel follows.
const maxLinks = 40

// to returns the file that an absolute path leads to. The last part is not followed.
func (w *walk) to(t mountTree, name string) (found entry, err error) {
	at, rest := "/", parts(name)
	on := t.at(at)
	found.kind = unix.S_IFDIR
	for links := 0; len(rest) > 0; {
		part, m := rest[0], on
		if rest = rest[1:]; part == "." {
			continue
		}
		next := strings.TrimSuffix(at, "/") + "/" + part
		if part == ".." {
			next = path.Dir(at)
			m = t.at(next)
			w.spent += len(next) * 16
		}
		m = t.over(m, next)
		within := next
		if m != t.root {
			within = path.Join("/", strings.TrimPrefix(next, path.Clean(m.GetMountpoint())))
		}
		if m.GetFstype() == uint32(mnt.Fstype_PROC) && magic.MatchString(path.Join(clean(m.GetRoot()), within)+"/") {
			return entry{}, errors.New("a link of /proc leads out of the container")
		}
		if kernelFileSystems[m.GetFstype()] != "" && links > 0 { // the kernel told CRIU names without links, and rules are about these
			return entry{}, errors.New("a link leads to files of the kernel's")
		}
		e, err := w.see(t, m, within, len(rest) > 0)
		if err != nil {
			return entry{}, err
		}
		switch found = e; {
		case e.kind == missing:
			return entry{}, nil
		case e.kind == unix.S_IFLNK && len(rest) > 0:
			if links++; links > maxLinks {
				return entry{}, errors.New("too many links")
			}
			if path.IsAbs(e.target) {
				at, on = "/", t.at("/")
			}
			// CRIU and the kernel walk, and do not clean: what is before .. may be a link.
			rest = append(parts(e.target), rest...)
		default:
			at, on = next, m
		}
	}
	return found, nil
}

func parts(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// see is look, which it asks once for what is on the way of several.
func (w *walk) see(t mountTree, m *mnt.MntEntry, within string, way bool) (entry, error) {
	if w.spent += len(within); w.spent > maxSpent {
		return entry{}, errPaths
	}
	place := mountPlace{m.GetMntId(), within}
	if e, ok := w.seen[place]; ok {
		return e, nil
	}
	w.spent += lookCosts
	e, err := w.look(t, m, within)
	if way && err == nil {
		w.seen[place] = e
	}
	return e, err
}

// look returns what is at a clean path within a mount.
func (w *walk) look(t mountTree, m *mnt.MntEntry, within string) (e entry, err error) {
	switch {
	case m == t.root:
		e.kind, e.target, err = w.files.Look(Root, within)
		return e, err
	case m.GetExtKey() != "":
		for i, s := range w.spec.Mounts {
			if !lookable(s) || path.Clean(s.Destination) != path.Clean(m.GetExtKey()) {
				continue
			}
			if e.kind, e.target, err = w.files.Look(i, within); e.kind == missing {
				e.kind = unknown // the host's, and not the snapshot's
			}
			return e, err
		}
	case m.GetFstype() == uint32(mnt.Fstype_TMPFS):
		return w.inImage(m, path.Join(clean(m.GetRoot()), within))
	case m.GetRootDev() == t.root.GetRootDev():
		e.kind, e.target, err = w.files.Look(Root, path.Join(clean(m.GetRoot()), within))
		return e, err
	}
	return entry{kind: unknown}, nil
}

// inImage looks into the image of a tmpfs. Source of its name: CRIU 4.2, criu/filesystems.c, tmpfs_restore.
func (w *walk) inImage(m *mnt.MntEntry, within string) (e entry, err error) {
	if within == "/" {
		return entry{kind: unix.S_IFDIR}, nil
	}
	for _, name := range []string{fmt.Sprintf("tmpfs-dev-%d.tar.gz.img", m.GetRootDev()), fmt.Sprintf("tmpfs-%d.tar.gz.img", m.GetMntId())} {
		entries, known := w.tmpfs[name]
		if !known {
			entries, err = entriesOf(w.images, name, &w.unzip)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return entry{}, fmt.Errorf("read %s: %w", name, err)
			}
			w.tmpfs[name] = entries
		}
		e := entries[within]
		for links := 0; e.kind == hard && links < maxLinks; links++ {
			e = entries[e.target]
		}
		return e, nil
	}
	return entry{kind: unknown}, nil
}

// Images of tmpfs that a review looks through may unpack together to as many bytes, and to as many times their length: cryo leaves them uncompressed. What is zeros takes
// no memory anywhere, but time.
var tmpfsFree int64 = 1 << 30 // tests have less

const tmpfsFactor = 4

// entriesOf reads what is in an image of a tmpfs. unpacked is how much the images before it had beyond their length's part, and grows.
func entriesOf(images fs.FS, name string, unpacked *int64) (map[string]entry, error) {
	f, err := images.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	entries := map[string]entry{}
	most := tmpfsFree - *unpacked + tmpfsFactor*info.Size()
	contents := &io.LimitedReader{R: z, N: most}
	defer func() { *unpacked += max(most-contents.N-tmpfsFactor*info.Size(), 0) }()
	for archive := tar.NewReader(contents); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		e := entry{kind: kindOfEntry[h.Typeflag], target: h.Linkname}
		switch e.kind {
		case hard:
			e.target = clean(h.Linkname)
		case unix.S_IFCHR:
			e.device = fmt.Sprintf("c%d:%d", h.Devmajor, h.Devminor)
		case unix.S_IFBLK:
			e.device = fmt.Sprintf("b%d:%d", h.Devmajor, h.Devminor)
		}
		if old, twice := entries[clean(h.Name)]; twice && old != e {
			return nil, fmt.Errorf("%q is there twice", h.Name)
		}
		if entries[clean(h.Name)] = e; len(entries) > maxEntries {
			return nil, fmt.Errorf("more than %d files", maxEntries)
		}
	}
}

var kindOfEntry = map[byte]uint32{tar.TypeReg: unix.S_IFREG, tar.TypeGNUSparse: unix.S_IFREG, tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK,
	tar.TypeLink: hard, tar.TypeFifo: unix.S_IFIFO, tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK}
