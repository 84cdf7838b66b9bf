package device

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/channel"
)

// KeeperVersion is that of the protocol. Keeper and client come from one build; another version is refused.
const KeeperVersion = 5

// KeeperVerb is what a request asks for.
type KeeperVerb string

const (
	VerbOpen    KeeperVerb = "open"
	VerbHold    KeeperVerb = "hold"    // with a descriptor for each piece
	VerbLetGo   KeeperVerb = "let go"  // of all pieces
	VerbRoom    KeeperVerb = "room"    // for all that is held once more?
	VerbMake    KeeperVerb = "make"    // the answer has a descriptor for each piece
	VerbCopy    KeeperVerb = "copy"    // one piece, with a descriptor to copy from and one to copy to
	VerbSend    KeeperVerb = "send"    // with the receiver's socket
	VerbReceive KeeperVerb = "receive" // with the sender's socket

	VerbPlan      KeeperVerb = "plan"      // pieces that are copied while their processes run; the answer says whether the device can sum them
	VerbBegin     KeeperVerb = "begin"     // to copy what was planned, with the receiver's socket
	VerbPrecopy   KeeperVerb = "precopy"   // a part of what was planned, with the piece's descriptor; without one, the part is taken for zeros
	VerbPrecopied KeeperVerb = "precopied" // all that was planned
)

// KeeperRequest is a message to the keeper.
type KeeperRequest struct {
	Do      KeeperVerb        `json:"do"`
	Version int               `json:"version,omitempty"` // of open
	Devices []string          `json:"devices,omitempty"` // of open: to be ready
	Ring    *RingGeometry     `json:"ring,omitempty"`    // of open
	Pieces  []record.GPUPiece `json:"pieces,omitempty"`  // of hold, make and copy; of room: beside that
	Spare   int64             `json:"spare,omitempty"`   // of room: beside that, on each device, bytes
	Part    *Part             `json:"part,omitempty"`    // of precopy
	Planned []int             `json:"planned,omitempty"` // of hold, none or one for each piece: which of the planned pieces was at its place, from 1; 0: none
}

// Part is a range of a planned piece: whole units of [Unit].
type Part struct {
	Piece  int   `json:"piece"`  // its number, in the order of the plan
	Offset int64 `json:"offset"` // bytes
	Length int64 `json:"length"` // bytes
}

// Unit is the length of what the keeper finds to be zero, or to be what it has copied before, bytes: a frame of a snapshot.
const Unit = 1 << 20

// KeeperAnswer is a message from the keeper.
type KeeperAnswer struct {
	Done  bool         `json:"done,omitempty"` // the last for this request; else it says that something moves, of send and receive
	Room  bool         `json:"room,omitempty"` // there is
	Sums  bool         `json:"sums,omitempty"` // of plan: the device can sum its memory, and has room for what is copied
	Error *ErrorReport `json:"error,omitempty"`
}

// DecodeKeeperRequest reads a request that came with so many descriptors, and refuses what no client sends.
func DecodeKeeperRequest(data []byte, files int) (KeeperRequest, error) {
	var r KeeperRequest
	if err := channel.Strict(data, &r); err != nil {
		return KeeperRequest{}, err
	}
	if err := r.check(files); err != nil {
		return KeeperRequest{}, fmt.Errorf("%s: %w", r.Do, err)
	}
	return r, nil
}

func (r KeeperRequest) check(files int) error {
	wanted := 0
	switch r.Do {
	case VerbOpen:
		if r.Ring == nil || *r.Ring == (RingGeometry{}) {
			return fmt.Errorf("no ring: %w", errdefs.ErrInvalidArgument)
		}
	case VerbHold:
		wanted = len(r.Pieces)
	case VerbCopy:
		wanted = 2
	case VerbSend, VerbReceive, VerbBegin:
		wanted = 1
	case VerbPrecopy:
		if err := r.Part.check(); err != nil {
			return err
		}
		wanted = min(files, 1)
	case VerbMake, VerbLetGo, VerbRoom, VerbPlan, VerbPrecopied:
	default:
		return fmt.Errorf("no such request: %w", errdefs.ErrInvalidArgument)
	}
	if files != wanted || r.Do == VerbCopy && len(r.Pieces) != 1 || len(r.Pieces) > Batch || len(r.Devices) > maxDevices || r.Spare < 0 {
		return fmt.Errorf("%d descriptors, %d pieces, %d devices, %d bytes to spare: %w", files, len(r.Pieces), len(r.Devices), r.Spare, errdefs.ErrInvalidArgument)
	}
	if n := len(r.Planned); n > 0 && (r.Do != VerbHold || n != len(r.Pieces)) {
		return fmt.Errorf("%d of %d pieces were planned: %w", n, len(r.Pieces), errdefs.ErrInvalidArgument)
	}
	for i, p := range r.Pieces {
		if err := check(p); err != nil {
			return PieceError(i, p, err)
		}
	}
	for _, uuid := range r.Devices {
		if _, err := ParseUUID(uuid); err != nil {
			return err
		}
	}
	return nil
}

func (p *Part) check() error {
	if p == nil || p.Piece < 0 || p.Piece >= MaxPieces || p.Offset < 0 || p.Offset > maxSize || p.Length <= 0 || p.Length > maxSize || p.Offset%Unit != 0 || p.Length%Unit != 0 {
		return fmt.Errorf("a part %+v: %w", p, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Descriptors returns those of files, which must stay open for as long as they are used.
func Descriptors(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

// FilesOf returns files of descriptors, which they close.
func FilesOf(fds []int) (files []*os.File) {
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "received"))
	}
	return files
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
