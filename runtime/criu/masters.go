package criu

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"google.golang.org/protobuf/proto"
)

// RootKey stands for the root file system among the keys of [SeparateMasters].
const RootKey = "/"

// SeparateMasters returns new contents, by file name, for those images of mounts in dir that CRIU could not restore on this host. A mount with a master is a slave: it shows what the host mounts
// below its source later. CRIU fails to make a slave if the source is in a private mount. It also fails if several mounts had one master and their sources are in different mounts here: it
// takes the source of one of them for all. So each mount that runc gives a source gets a master of its own, or none if its source is in a private mount. propagates tells by the mounts' keys
// whether their sources are in mounts with propagation.
// Source: CRIU 4.2, criu/mount-v2.c, resolve_shared_mounts_v2 and restore_one_sharing_group.
func SeparateMasters(dir string, propagates map[string]bool) (images map[string][]byte, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "mountpoints-*.img"))
	if err != nil {
		return nil, fmt.Errorf("find the images of mounts: %w", err)
	}
	images = map[string][]byte{}
	for _, file := range files {
		name := filepath.Base(file)
		image, err := separateMasters(file, propagates)
		if err != nil {
			return nil, fmt.Errorf("change CRIU's image %s: %w", name, err)
		}
		if image != nil {
			images[name] = image
		}
	}
	return images, nil
}

// separateMasters returns the image anew; nil: it is right.
func separateMasters(file string, propagates map[string]bool) ([]byte, error) {
	image, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	mounts, err := decodeImage[mnt.MntEntry](image)
	if err != nil {
		return nil, err
	}
	last := uint32(0)
	for _, m := range mounts {
		last = max(last, m.GetSharedId(), m.GetMasterId())
	}
	changed := false
	for _, m := range mounts {
		key := m.GetExtKey()
		if key == "" && path.Clean("/"+m.GetMountpoint()) == "/" {
			key = RootKey
		}
		propagates, given := propagates[key]
		if !given || m.GetMasterId() == 0 || m.GetSharedId() != 0 {
			continue
		}
		changed = true
		m.MasterId = nil
		if propagates {
			last++
			m.MasterId = proto.Uint32(last)
		}
	}
	if !changed {
		return nil, nil
	}
	return encodeImage(image, mounts)
}
