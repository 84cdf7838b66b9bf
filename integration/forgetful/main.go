// Forgetful is a disk whose power can be cut: a FUSE file system that passes on what is done to it, and knows what of it was synced.
//
//	forgetful DIRECTORY MOUNTPOINT
//
// keeps its files in DIRECTORY, says "ok" when it is mounted, and then takes lines on standard input, each answered by "ok" or an error:
//
//	fail CALL ERRNO      fsync or write give that error number from now on; 0: no more
//	cut SEED SHARE       unmounts, makes the files what is on the disk when the power is cut now, and ends. Of what was not synced, SHARE (0 to 1) got there
//
// It ends without that when its input ends. Who has started it unmounts it before: something else may be mounted there by then.
package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "forgetful DIRECTORY MOUNTPOINT")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Println("forgetful:", err)
		os.Exit(1)
	}
}

func serve(dir, at string) error {
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o711); err != nil {
		return err
	}
	j, err := newJournal(root, filepath.Join(dir, "grave"))
	if err != nil {
		return err
	}
	d := &disk{journal: j, fails: map[string]syscall.Errno{}}
	var s syscall.Stat_t
	if err := syscall.Stat(root, &s); err != nil {
		return err
	}
	loopback := &fs.LoopbackRoot{Path: root, Dev: uint64(s.Dev)}
	top := &node{&fs.LoopbackNode{RootData: loopback}, d}
	loopback.RootNode = top
	second := time.Second
	_, err = fs.Mount(at, top, &fs.Options{
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMount: true, FsName: "forgetful", Name: "forgetful", MaxWrite: 512 << 10, Options: []string{"default_permissions"}},
		AttrTimeout:  &second, EntryTimeout: &second,
	})
	if err != nil {
		return fmt.Errorf("mount on %s: %w", at, err)
	}
	fmt.Println("ok")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		over, err := d.obey(strings.Fields(in.Text()), at)
		if err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("ok")
		}
		if over {
			return nil
		}
	}
	return nil
}

// obey carries out a line.
func (d *disk) obey(words []string, at string) (over bool, err error) {
	line := strings.Join(words, " ")
	var call string
	var errno int
	var seed uint64
	var share float64
	if n, _ := fmt.Sscanf(line, "fail %s %d", &call, &errno); n == 2 && (call == "fsync" || call == "write") {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fails[call] = syscall.Errno(errno)
		return false, nil
	}
	if n, _ := fmt.Sscanf(line, "cut %d %g", &seed, &share); n == 2 {
		// Other mount namespaces may have a copy of the mount. Nobody uses it.
		if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
			return true, fmt.Errorf("unmount: %w", err)
		}
		random := rand.New(rand.NewPCG(seed, 0))
		return true, d.journal.cut(func() bool { return random.Float64() < share })
	}
	return false, fmt.Errorf("what is %q", line)
}
