package worker

import (
	"reflect"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// TestOrder has a request go through the options of a task, and leave what else is there.
func TestOrder(t *testing.T) {
	o := &options.Options{Root: "/r"}
	other := protowire.AppendBytes(protowire.AppendTag(nil, 9000, protowire.BytesType), []byte("x"))
	o.ProtoReflect().SetUnknown(other)
	if r, err := RequestIn(proto.Clone(o).(*options.Options)); r != nil || err != nil {
		t.Errorf("there is none: %+v, %v", r, err)
	}
	want := Request{Ref: "r:1", ID: "a", Order: &Order{Digest: "sha256:0", Environment: []string{"A=b"}, Annotations: map[string]string{"c": "d"}}}
	if err := want.Put(o); err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var sent options.Options
	if err := proto.Unmarshal(data, &sent); err != nil {
		t.Fatal(err)
	}
	got, err := RequestIn(&sent)
	want.Asked = protocol
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if left := sent.ProtoReflect().GetUnknown(); sent.Root != "/r" || string(left) != string(other) {
		t.Errorf("%q is left, and the root is %q", left, sent.Root)
	}
}

// TestOrderRefused: a request without an order, or that is none.
func TestOrderRefused(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		is   func(error) bool
	}{
		"no order":    {`{"asked":8}`, errdefs.IsInvalidArgument},
		"only a task": {`{"asked":8,"checkpoint":{}}`, errdefs.IsInvalidArgument},
		"no request":  {`x`, errdefs.IsInvalidArgument},
	} {
		var o options.Options
		o.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, orderField, protowire.BytesType), []byte(test.text)))
		if r, err := RequestIn(&o); !test.is(err) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
