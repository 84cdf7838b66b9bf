package library

import (
	"context"
	"encoding/binary"
	"os"

	"github.com/cryo-project/cryo/image/record"
)

// Places lists the pieces that the process has now, as Table does, while the gate is open. They may be freed, and others made, at any time. An older library does not know how: [device.CallError].
func (p *Process) Places() ([]record.GPUPiece, error) {
	return p.list(places)
}

// Lend has the process give a descriptor of one of these pieces while it runs, for the time until Return: a program that frees the piece waits until then, but for no longer than two seconds. A piece that there is no more is a
// [device.CallError] with the code [NotFound].
func (p *Process) Lend(piece record.GPUPiece) (*os.File, error) {
	const step = "lend"
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	which := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, piece.Address), uint64(piece.Size))
	h, payload, files, err := p.request(ctx, step, header{Kind: lending}, which, nil)
	return p.single(step, 0, h, payload, files, err)
}

// Return tells the process that no other process has the piece any more that it has lent.
func (p *Process) Return() error {
	_, _, err := p.ask("return", header{Kind: returning}, nil)
	return err
}
