package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// volumes are directories with files: tmpfs, /dev/shm, bind mounts. With --keep only what is open is written, as on a
// host where the directory's content does not come with the snapshot.
type volumes struct {
	paths   []string
	content []byte
	open    []*os.File
}

func startVolumes(flags *flag.FlagSet, args []string) (workload, error) {
	kib := flags.Int("size", 256, "size of the file in each directory, in KiB")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	v := &volumes{paths: flags.Args(), content: make([]byte, *kib<<10)}
	if len(v.paths) == 0 {
		return nil, fmt.Errorf("no directories; give them as arguments")
	}
	_, _ = newRandom(9).Read(v.content) // never fails
	for _, path := range v.paths {
		if err := os.MkdirAll(filepath.Join(path, "below"), 0o750); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(path, "below/file"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o640)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(v.content); err != nil {
			return nil, err
		}
		v.open = append(v.open, f)
	}
	return v, nil
}

// Check reads by name and through the descriptor, and sees that both are the same file.
func (v *volumes) Check() (map[string]any, error) {
	state := map[string]any{"directories": len(v.paths)}
	for i, path := range v.paths {
		name := filepath.Join(path, "below/file")
		if err := has(name, string(v.content), 0o640); err != nil {
			return state, fmt.Errorf("file of %s: it is another (%v)", path, err)
		}
		content := make([]byte, len(v.content))
		if _, err := v.open[i].ReadAt(content, 0); err != nil || !bytes.Equal(content, v.content) {
			return state, fmt.Errorf("open file of %s has other content (%v)", path, err)
		}
		opened, err := v.open[i].Stat()
		if err != nil {
			return state, err
		}
		if named, err := os.Stat(name); err != nil || !os.SameFile(opened, named) {
			return state, fmt.Errorf("open file of %s is not the named one (%v)", path, err)
		}
	}
	return state, nil
}
