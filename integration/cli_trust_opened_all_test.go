package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	regfile "github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// TestForgedOpened has an open file that is a FIFO in the root file system, which CRIU would wait at for ever, or a file of the host's, which CRIU would open
// by a link of /proc. It is refused within seconds, by the name of a rule.
func TestForgedOpened(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	f := frozen{id: name(t), ref: "cryo.test/" + name(t) + ":1"}
	startImage(t, a, shared.image, f.id, nil, "workload", "files")
	await(t, a, f.id)
	pid, _, err := a.Task(t.Context(), f.id)
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	err = errors.Join(unix.Mkfifo(root+"/srv/pipe", 0o640), unix.Mkfifo(root+"/run/pipe", 0o640), os.Link(root+"/run/pipe", root+"/run/other"),
		os.Symlink("/proc/self", root+"/run/self"), os.Symlink("../run/self", root+"/srv/link"), os.Mkdir(root+"/srv/directory", 0o750))
	if err != nil {
		t.Fatal(err)
	}
	away(t, f.ref)
	must(t, a.Cryo(t.Context(), "checkpoint", f.id, f.ref))
	remove(t.Context(), a, f.id)
	f.digest = inspect(t, a, f.ref).Digest
	g := newForger(t, f)
	const files, opened = "open-files", "opened-files"
	for name, test := range map[string]struct {
		rule, words string
		change      func(*regfile.RegFileEntry)
	}{
		"/srv/pipe":               {opened, "is a FIFO, and open as a regular file", nil},
		"/run/pipe":               {opened, "is a FIFO, and open as a regular file", nil},
		"/run/other":              {opened, "is a FIFO, and open as a regular file", nil},
		"/srv/directory":          {opened, "is a directory, and open as a regular file", nil},
		"/srv/none":               {opened, "is not in the root file system", nil},
		"/srv/none.cr.1.ghost/it": {files, "gives deleted files", nil},
		"/srv/pipe as a FIFO":     {files, "opened as another kind of file", func(e *regfile.RegFileEntry) { e.Mode = proto.Uint32(unix.S_IFIFO | 0o640) }},
		"/srv/pipe without kind":  {files, "without its kind", func(e *regfile.RegFileEntry) { e.Mode = nil }},
		"/srv/link/exe":           {opened, "leads to files of the kernel's", func(e *regfile.RegFileEntry) { e.Mode = proto.Uint32(unix.S_IFREG | 0o755) }},
		"/proc/self/exe":          {opened, "leads out of the container", func(e *regfile.RegFileEntry) { e.Mode = proto.Uint32(unix.S_IFREG | 0o755) }},
	} {
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
			path, _, _ := strings.Cut(name, " ")
			ref := "cryo.test/forged-opened:1"
			g.forgeImages(t, b, ref, func(dir string) {
				found := false
				rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
					for _, e := range all {
						if strings.HasSuffix(e.GetReg().GetName(), "/read") {
							found = true
							e.Reg.Name, e.Reg.Flags, e.Reg.Size = &path, proto.Uint32(0), nil
							if test.change != nil {
								test.change(e.Reg)
							}
						}
					}
					return all
				})
				if !found {
					t.Fatal("the file is not open")
				}
			})
			denied(t, b, nil, codeDamaged, test.rule, test.words, "restore", ref, "--name", "forged", "--allow", "all")
		})
	}
}
