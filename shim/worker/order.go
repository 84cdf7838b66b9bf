package worker

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// orderField is a field of a task's options, or of a checkpoint's, that is not runc's. containerd takes only options of runc's types, passes them on as they are, and does not keep
// them, so that credentials are written nowhere. Source: containerd, plugins/services/tasks/local.go.
const orderField protowire.Number = 10_000

// Put adds the request to the options of a task that is about to be created, or to those of a checkpoint.
func (r Request) Put(o proto.Message) error {
	r.Asked = protocol
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write what is asked for: %w", err)
	}
	m := o.ProtoReflect()
	m.SetUnknown(protowire.AppendBytes(protowire.AppendTag(m.GetUnknown(), orderField, protowire.BytesType), data))
	return nil
}

// RequestIn takes a request out of options; nil: they have none. The process that it is for decides whether it understands the command's version.
func RequestIn(o proto.Message) (*Request, error) {
	m := o.ProtoReflect()
	var request *Request
	var others []byte
	for rest := []byte(m.GetUnknown()); len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
		if tag < 0 || size < 0 {
			return nil, fmt.Errorf("read the options: %w", errdefs.ErrInvalidArgument)
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
			return nil, fmt.Errorf("read what is asked for: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if request.Order == nil && (request.Checkpoint == nil || request.Checkpoint.Order == nil) {
			return nil, fmt.Errorf("read what is asked for: there is no order: %w", errdefs.ErrInvalidArgument)
		}
		if request.Checkpoint != nil && !takesOrders {
			request = nil
		}
	}
	m.SetUnknown(others)
	return request, nil
}
