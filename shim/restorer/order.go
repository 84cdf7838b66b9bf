package restorer

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// orderField is a field of a task's options that is not runc's. containerd takes only options of runc's types, passes them on as they are, and does not keep them, so that
// credentials are written nowhere. Source: containerd, plugins/services/tasks/local.go.
const orderField protowire.Number = 10_000

// Put adds the request, which has an order, to the options of a task that is about to be created.
func (r Request) Put(o *options.Options) error {
	r.Protocol = protocol
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write what is to be restored: %w", err)
	}
	m := o.ProtoReflect()
	m.SetUnknown(protowire.AppendBytes(protowire.AppendTag(m.GetUnknown(), orderField, protowire.BytesType), data))
	return nil
}

// RequestIn takes a request out of the options of a task; nil: they have none.
func RequestIn(o *options.Options) (*Request, error) {
	m := o.ProtoReflect()
	var request *Request
	var others []byte
	for rest := []byte(m.GetUnknown()); len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
		if tag < 0 || size < 0 {
			return nil, fmt.Errorf("read the options of the task: %w", errdefs.ErrInvalidArgument)
		}
		field := rest[:tag+size]
		rest = rest[tag+size:]
		if number != orderField || kind != protowire.BytesType {
			others = append(others, field...)
			continue
		}
		data, _ := protowire.ConsumeBytes(field[tag:])
		request = &Request{}
		if err := json.Unmarshal(data, request); err != nil {
			return nil, fmt.Errorf("read what is to be restored: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if request.Protocol != protocol || request.Order == nil {
			return nil, failure.New(errdefs.ErrFailedPrecondition, "install the programs of one release", "the command and the shim are of different versions")
		}
	}
	m.SetUnknown(others)
	return request, nil
}
