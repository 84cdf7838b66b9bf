package keeper

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// Version is that of the protocol. Keeper and client come from one build; another version is refused.
const Version = 4

// verb is what a request asks for.
type verb string

const (
	verbOpen    verb = "open"
	verbHold    verb = "hold"    // with a descriptor for each piece
	verbLetGo   verb = "let go"  // of all pieces
	verbRoom    verb = "room"    // for all that is held once more?
	verbMake    verb = "make"    // the answer has a descriptor for each piece
	verbCopy    verb = "copy"    // one piece, with a descriptor to copy from and one to copy to
	verbSend    verb = "send"    // with the socket of who receives
	verbReceive verb = "receive" // with the socket of who sends
)

// request is a message to the keeper.
type request struct {
	Do      verb            `json:"do"`
	Version int             `json:"version,omitempty"` // of open
	Devices []string        `json:"devices,omitempty"` // of open: to be ready
	Ring    *ring.Geometry  `json:"ring,omitempty"`    // of open
	Pieces  []spec.GPUPiece `json:"pieces,omitempty"`  // of hold, make and copy; of room: beside that
	Spare   int64           `json:"spare,omitempty"`   // of room: beside that, on each device, bytes
}

// answer is a message from the keeper.
type answer struct {
	Done  bool    `json:"done,omitempty"` // the last for this request; else it says that something moves, of send and receive
	Room  bool    `json:"room,omitempty"` // there is
	Error *report `json:"error,omitempty"`
}

// decodeRequest reads a request that came with so many descriptors, and refuses what no client sends.
func decodeRequest(data []byte, files int) (request, error) {
	var r request
	if err := channel.Strict(data, &r); err != nil {
		return request{}, err
	}
	if err := r.check(files); err != nil {
		return request{}, fmt.Errorf("%s: %w", r.Do, err)
	}
	return r, nil
}

func (r request) check(files int) error {
	wanted := 0
	switch r.Do {
	case verbOpen:
		if r.Ring == nil || *r.Ring == (ring.Geometry{}) {
			return fmt.Errorf("no ring: %w", errdefs.ErrInvalidArgument)
		}
	case verbHold:
		wanted = len(r.Pieces)
	case verbCopy:
		wanted = 2
	case verbSend, verbReceive:
		wanted = 1
	case verbMake, verbLetGo, verbRoom:
	default:
		return fmt.Errorf("no such request: %w", errdefs.ErrInvalidArgument)
	}
	if files != wanted || r.Do == verbCopy && len(r.Pieces) != 1 || len(r.Pieces) > batch || len(r.Devices) > maxDevices || r.Spare < 0 {
		return fmt.Errorf("%d descriptors, %d pieces, %d devices, %d bytes to spare: %w", files, len(r.Pieces), len(r.Devices), r.Spare, errdefs.ErrInvalidArgument)
	}
	for i, p := range r.Pieces {
		if err := check(p); err != nil {
			return pieceError(i, p, err)
		}
	}
	for _, uuid := range r.Devices {
		if _, err := driver.ParseUUID(uuid); err != nil {
			return err
		}
	}
	return nil
}

// descriptors are those of files, which are to be alive for as long as they are used.
func descriptors(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

// filesOf is the way back.
func filesOf(fds []int) (files []*os.File) {
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "received"))
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
