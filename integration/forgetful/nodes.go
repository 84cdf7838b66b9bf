package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// disk is the mounted file system.
type disk struct {
	journal *journal

	mu    sync.Mutex
	fails map[string]syscall.Errno // guarded by mu; what "fsync" and "write" give; none: they are carried out
}

// fail is the error that a call is to give now, or 0.
func (d *disk) fail(call string) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fails[call]
}

// node is a file or directory, which tells the journal what is done to it.
type node struct {
	*fs.LoopbackNode
	disk *disk
}

var (
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.NodeFsyncer     = (*node)(nil)
	_ fs.NodeOpener      = (*node)(nil)
	_ fs.NodeCreater     = (*node)(nil)
	_ fs.NodeSetattrer   = (*node)(nil)
)

// WrapChild implements [fs.NodeWrapChilder].
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if child, ok := ops.(*fs.LoopbackNode); ok {
		return &node{child, n.disk}
	}
	return ops
}

// path is where the node really is.
func (n *node) path() string {
	return filepath.Join(n.disk.journal.root, n.Path(n.Root()))
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.disk.fail("write"); errno != 0 {
		return nil, nil, 0, errno
	}
	n.disk.journal.changing(n.path())
	path := filepath.Join(n.path(), name)
	there := syscall.Access(path, 0) == nil
	child, f, more, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return child, f, more, errno
	}
	h, errno := n.disk.handle(ctx, f)
	if errno == 0 && !there {
		n.disk.journal.created(h.inode)
	}
	return child, h, more, errno
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.journal.changing(n.path())
	child, errno := n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
	if errno == 0 {
		var s syscall.Stat_t
		if syscall.Lstat(filepath.Join(n.path(), name), &s) == nil {
			n.disk.journal.created(s.Ino)
		}
	}
	return child, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.journal.changing(n.path())
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.journal.changing(n.path())
	return n.LoopbackNode.Symlink(ctx, target, name, out)
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.journal.changing(n.path())
	return n.LoopbackNode.Link(ctx, target, name, out)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	n.disk.journal.changing(n.path())
	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	n.disk.journal.changing(n.path())
	n.disk.journal.parting(filepath.Join(n.path(), name))
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	to, ok := parent.(*node)
	if !ok {
		return syscall.EXDEV
	}
	n.disk.journal.changing(n.path())
	n.disk.journal.changing(to.path())
	n.disk.journal.parting(filepath.Join(to.path(), newName))
	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		if errno := n.truncating(); errno != 0 {
			return nil, 0, errno
		}
	}
	f, more, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return f, more, errno
	}
	h, errno := n.disk.handle(ctx, f)
	return h, more, errno
}

// truncating tells the journal that the content changes.
func (n *node) truncating() syscall.Errno {
	var s syscall.Stat_t
	if err := syscall.Lstat(n.path(), &s); err != nil {
		return fs.ToErrno(err)
	}
	if err := n.disk.journal.writing(s.Ino, n.path()); err != nil {
		return syscall.EIO
	}
	return 0
}

func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if _, sized := in.GetSize(); sized {
		h, ok := f.(*handle)
		if !ok {
			if errno := n.truncating(); errno != 0 {
				return errno
			}
		} else if errno := h.changing(); errno != 0 {
			return errno
		}
	}
	if h, ok := f.(*handle); ok {
		return n.LoopbackNode.Setattr(ctx, h.file, in, out)
	}
	return n.LoopbackNode.Setattr(ctx, nil, in, out)
}

func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if h, ok := f.(*handle); ok {
		return h.file.Getattr(ctx, out)
	}
	return n.LoopbackNode.Getattr(ctx, nil, out)
}

// OpendirHandle has the syncing of directories come here.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, more, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return h, more, errno
	}
	stream, ok := h.(directoryStream)
	if !ok {
		return nil, 0, syscall.EIO
	}
	return &directory{stream, n}, more, 0
}

// directoryStream is what go-fuse's own handle of a directory does.
type directoryStream interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

// directory is an open directory.
type directory struct {
	directoryStream
	node *node
}

var _ fs.FileFsyncdirer = (*directory)(nil)

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.node.Fsync(ctx, nil, flags)
}

// Statfs is asked for files that have no name any more, too.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	var s syscall.Statfs_t
	if err := syscall.Statfs(n.disk.journal.root, &s); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStatfsT(&s)
	return 0
}

// Fsync is that of directories, and of files by their handle.
func (n *node) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	if errno := n.disk.fail("fsync"); errno != 0 {
		return errno
	}
	if h, ok := f.(*handle); ok {
		n.disk.journal.syncedFile(h.inode)
		return 0
	}
	var s syscall.Stat_t
	if err := syscall.Lstat(n.path(), &s); err != nil {
		return fs.ToErrno(err)
	}
	n.disk.journal.syncedDir(s.Ino)
	return 0
}

// handle is an open file.
type handle struct {
	file  *fs.LoopbackFile
	disk  *disk
	inode uint64
}

var (
	_ fs.FileReader    = (*handle)(nil)
	_ fs.FileWriter    = (*handle)(nil)
	_ fs.FileReleaser  = (*handle)(nil)
	_ fs.FileFlusher   = (*handle)(nil)
	_ fs.FileLseeker   = (*handle)(nil)
	_ fs.FileAllocater = (*handle)(nil)
)

func (d *disk) handle(ctx context.Context, f fs.FileHandle) (*handle, syscall.Errno) {
	file, ok := f.(*fs.LoopbackFile)
	if !ok {
		return nil, syscall.EIO
	}
	var out fuse.AttrOut
	errno := file.Getattr(ctx, &out)
	return &handle{file, d, out.Ino}, errno
}

// changing tells the journal that the content changes.
func (h *handle) changing() syscall.Errno {
	fd, ok := h.file.PassthroughFd()
	if !ok {
		return syscall.EBADF
	}
	if err := h.disk.journal.writing(h.inode, fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return syscall.EIO
	}
	return 0
}

func (h *handle) Read(ctx context.Context, to []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return h.file.Read(ctx, to, off)
}

func (h *handle) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := h.disk.fail("write"); errno != 0 {
		return 0, errno
	}
	if errno := h.changing(); errno != 0 {
		return 0, errno
	}
	return h.file.Write(ctx, data, off)
}

func (h *handle) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if errno := h.disk.fail("write"); errno != 0 {
		return errno
	}
	if errno := h.changing(); errno != 0 {
		return errno
	}
	return h.file.Allocate(ctx, off, size, mode)
}

func (h *handle) Release(ctx context.Context) syscall.Errno { return h.file.Release(ctx) }

func (h *handle) Flush(ctx context.Context) syscall.Errno { return h.file.Flush(ctx) }

func (h *handle) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	return h.file.Lseek(ctx, off, whence)
}
