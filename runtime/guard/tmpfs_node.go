package guard

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/runtime/channel"
)

// NodesVariable is the environment variable with the path of the socket of the process that makes device nodes.
const NodesVariable = "CRYO_NODES"

// DeviceNode is a device node of an image, as its maker is asked for it. The message has the descriptor of its directory.
type DeviceNode struct {
	Name         string
	Character    bool
	Major, Minor int64
	UID, GID     int
	Mode         uint32 // permissions
}

// NodeAnswer is the maker's.
type NodeAnswer struct {
	Made  bool   // false: the container may not have such a node
	Error string // if it may, and the node was not made
}

// node has a device node made. One that the container may not have is left out: nodes of GPUs, whose numbers are other ones on each host, are made by the shim (package gpu).
func (x *extractor) node(dir int, base string, h *format.TarHead) (made bool, err error) {
	if x.maker == nil {
		socket := os.Getenv(NodesVariable)
		if socket == "" {
			return false, errors.New("the image has a device node, and " + NodesVariable + " names no process that makes it")
		}
		if x.maker, _, err = channel.Dial(filepath.Split(socket)); err != nil {
			return false, fmt.Errorf("find the process that makes device nodes: %w", err)
		}
	}
	asked := DeviceNode{Name: base, Character: h.Typeflag == tar.TypeChar, Major: h.Devmajor, Minor: h.Devminor, UID: h.Uid, GID: h.Gid, Mode: uint32(h.Mode & 0o7777)}
	if err := x.maker.Send(asked, dir); err != nil {
		return false, fmt.Errorf("ask for a device node: %w", err)
	}
	var answer NodeAnswer
	fds, err := x.maker.Receive(&answer)
	channel.Close(fds)
	switch {
	case err != nil:
		return false, fmt.Errorf("ask for a device node: %w", err)
	case answer.Error != "":
		return false, errors.New(answer.Error)
	case !answer.Made:
		x.leftOut[filepath.Join(x.parent.Name(), base)] = true
	}
	return answer.Made, nil
}

func (x *extractor) closeMaker() {
	if x.maker != nil {
		_ = x.maker.Close()
	}
}
