package shim

import (
	"errors"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/status"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
)

// reply gives an error the form in which it crosses to containerd: its kind, and its text once, with the rule and the hint as its last lines
// ([failure.Text]). A command that has started this hears more from its process ([worker.News]). errgrpc alone sends every cause of an error
// that joins several a second time, and clients print them all.
func reply(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok && errors.Is(errdefs.Resolve(err), errdefs.ErrUnknown) { // the stock service's, and it has got no other kind
		if text := trust.Lines(s.Message()); text != s.Message() {
			return status.Error(s.Code(), text)
		}
		return err
	}
	hint := failure.Hint(err)
	if hint != "" {
		hint = trust.Lines(hint)
	}
	text := failure.Text(trust.Lines(err.Error()), failure.Rule(err), hint) // a snapshot's names cannot look like a rule or a hint
	kind := errdefs.Resolve(err)
	if errors.Is(kind, errdefs.ErrUnavailable) { // clients take Unavailable to mean that containerd is away, and ask again
		kind = errdefs.ErrAborted
	}
	return errgrpc.ToGRPC(failure.New(kind, "", "%s", text))
}

// native returns an error of the stock service as what it says and its kind; others as they are.
func native(err error) error {
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return failure.New(errdefs.Resolve(errgrpc.ToNative(err)), "", "%s", s.GRPCStatus().Message())
	}
	return err
}
