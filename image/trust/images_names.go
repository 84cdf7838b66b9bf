package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// restorable are the images that a checkpoint of cryo's CRIU writes, with what runc and cryo put beside them. CRIU looks for others as well: for those
// of its old formats, and for kinds of objects that nobody has reviewed. Source: CRIU 4.2, criu/image-desc.c.
var restorable = regexp.MustCompile(`^(` +
	`(inventory|pstree|seccomp|files|cgroup|apparmor|filelocks|fifo-data|memfd|pipes-data|remap-fpath|sk-queues|tty-info|tty-data|stats-dump)\.img|` +
	`(core|ids|mm|fs|fdinfo|pagemap|pagemap-shmem|pages|pages-shmem|utsns|userns|pidns|timens|mountpoints|ipcns-(var|shm|msg|sem)|` +
	`netns|netdev|ifaddr|route|route6|rule|iptables|ip6tables|nftables|netns-ct|netns-exp|rlimit|creds)-[0-9]+\.img|` +
	`(ghost-file|tcp-stream)-[0-9a-f]+\.img|` +
	`tmpfs-(dev-)?[0-9]+\.tar\.gz\.img|` +
	`descriptors\.json|cryo(-[a-z]+)?\.json` +
	`)$`)

// parent is where CRIU looks for memory that is not here. Source: CRIU 4.2, criu/pagemap.c.
const parent = "parent"

// names refuses images that no checkpoint writes.
func (r *imageReviewer) names() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("list CRIU images: %w", err)
	}
	for _, e := range entries {
		if e.Name() == parent {
			if info, err := os.Stat(filepath.Join(r.dir, parent)); err == nil && info.IsDir() {
				continue
			}
		}
		if !restorable.MatchString(e.Name()) || !e.Type().IsRegular() {
			return &DamagedError{File: fmt.Sprintf("%q", e.Name()), Err: errors.New("a checkpoint writes no such image")}
		}
	}
	return nil
}

// descriptors reviews what runc takes for the container's standard streams: for each entry that is a pipe it gives its own descriptor of that number
// to CRIU, and there are only three that are streams. Source: runc, libcontainer/criu_linux.go.
func (r *imageReviewer) descriptors() error {
	const name, streams = "descriptors.json", 3
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read CRIU images: %w", err)
	}
	var all []string
	err = json.Unmarshal(data, &all)
	if err == nil && len(all) > streams {
		err = fmt.Errorf("%d standard streams", len(all))
	}
	if err != nil {
		return &DamagedError{File: name, Err: err}
	}
	return nil
}
