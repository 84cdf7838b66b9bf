package tmpfs

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/sparsetar"
)

// directory is one that is open. Its owner, mode and times are set when it is left: the files in it change them.
type directory struct {
	name string
	fd   int
	set  *sparsetar.Head // nil: as it is
}

// enter goes to a directory, and leaves those on the way that it is not below.
func (x *extractor) enter(path []string) (fd int, err error) {
	for i, name := range path {
		if i+1 < len(x.open) {
			if x.open[i+1].name == name {
				continue
			}
			if err := x.leaveTo(i + 1); err != nil {
				return 0, err
			}
		}
		fd, err := openDirectory(x.open[i].fd, name)
		if err != nil {
			return 0, fmt.Errorf("enter %.300q: %w", strings.Join(path[:i+1], "/"), err)
		}
		x.open = append(x.open, directory{name: name, fd: fd})
	}
	if err := x.leaveTo(len(path) + 1); err != nil {
		return 0, err
	}
	return x.open[len(path)].fd, nil
}

func openDirectory(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func (x *extractor) leaveTo(depth int) error {
	for len(x.open) > depth {
		if err := x.leave(); err != nil {
			return err
		}
	}
	return nil
}

// leave sets what is to be set of the directory it is in, and closes it.
func (x *extractor) leave() (err error) {
	last := len(x.open) - 1
	d := x.open[last]
	x.open = x.open[:last]
	defer func() { err = errors.Join(err, unix.Close(d.fd)) }()
	if d.set == nil {
		return nil
	}
	if err = setAttributes(d.fd, d.set); err == nil {
		if last == 0 {
			err = setTimes(d.fd, ".", d.set)
		} else {
			err = setTimes(x.open[last-1].fd, d.name, d.set)
		}
	}
	if err != nil {
		return fmt.Errorf("directory %.300q: %w", d.set.Name, err)
	}
	return nil
}

// split gives the names on a path, which must stay below where it begins.
func split(path string) (names []string, err error) {
	if strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return nil, errors.New("its name is not one in the directory")
	}
	for _, name := range strings.Split(path, "/") {
		switch name {
		case "", ".":
		case "..":
			return nil, errors.New("its name leads out of the directory")
		default:
			names = append(names, name)
		}
	}
	return names, nil
}
