package trust

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fieldsTable is the allowlist: a line for each field of each message. A message or field that it does not name is refused, and so are fields that no message of CRIU 4.2 has. Its third
// column says what a field can do:
//   - harmless: it sets state that the process could set by itself, or CRIU only compares it.
//   - own: it is about a namespace, a file system or a cgroup of the container. Rules for other fields decide whether the container may have that.
//   - rule: it can give a process more. The function in the last column decides.
//   - anew: what it says is compared or set again by the specification when CRIU is through.
//   - refused: a message may not have it.
//
// The fourth column has the bounds of what reaches the kernel, or by which CRIU allocates memory or counts.
//
// cgroup.img, inventory.img and descriptors.json name cgroups, namespaces and pipes of the dump's host, which no specification knows. The rules cgroups,
// namespaces, inventory and images check them.
//
//go:embed fields.tsv
var fieldsTable string

// refused is the kind of fields that a message may not have.
const refused = "refused"

// bounds are those of a number, or of a length.
type bounds struct {
	bounded  bool
	min, max int64
}

// reviewed returns the fields of each message that fields.tsv allows.
var reviewed = sync.OnceValue(func() map[protoName]map[protoName]bounds { return readFields(fieldsTable) })

type protoName = protoreflect.Name

// readFields reads the table's lines.
func readFields(table string) map[protoName]map[protoName]bounds {
	all := map[protoName]map[protoName]bounds{}
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		const least, bound = 3, 3
		if len(columns) < least || strings.HasPrefix(line, "#") || columns[2] == refused {
			continue
		}
		var b bounds
		if len(columns) > bound && columns[bound] != "" {
			n, err := fmt.Sscanf(columns[bound], "%d..%d", &b.min, &b.max)
			b.bounded = true
			if err != nil || n != 2 || b.min > b.max { // it holds nothing then
				b.min, b.max = 1, 0
			}
		}
		message := protoName(columns[0])
		if all[message] == nil {
			all[message] = map[protoName]bounds{}
		}
		all[message][protoName(columns[1])] = b
	}
	return all
}

// maxNested bounds messages within messages: cgroups within cgroups are the deepest.
const maxNested = 2 * maxCgroupDepth

// maxFields bounds the fields of a record, with those of the messages in it: two bytes may be a message, which takes a hundred to hold. Memory regions have
// ten fields each, and a process has 65,530 of them unless the host's administrator allows more.
const maxFields = 1 << 20

// allowed refuses a record that is not as fields.tsv says, or has too many fields.
func allowed(d protoreflect.MessageDescriptor, data []byte) error {
	left := maxFields
	return allowedIn(d, data, 0, &left)
}

// allowedIn refuses a message, as it is written, with fields that are not in the table, and one that another decoder could read in another way: CRIU's is not this
// one.
func allowedIn(d protoreflect.MessageDescriptor, data []byte, depth int, left *int) error {
	fields, ok := reviewed()[d.Name()]
	if !ok || depth > maxNested {
		return fmt.Errorf("a message %s, which no checkpoint writes", d.Name())
	}
	var few [64]bool
	var counts map[protoName]int64 // of lists
	for len(data) > 0 {
		if *left--; *left < 0 {
			return fmt.Errorf("a record of more than %d fields", maxFields)
		}
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		f := d.Fields().ByNumber(number)
		if f == nil {
			return fmt.Errorf("field %d of %s, which is not known", number, d.Name())
		}
		bound, known := fields[f.Name()]
		if !known {
			return fmt.Errorf("field %s of %s, which no checkpoint of cryo's writes", f.Name(), d.Name())
		}
		if !f.IsList() && int(number) < len(few) {
			if few[number] {
				return fmt.Errorf("field %s of %s twice", f.Name(), d.Name())
			}
			few[number] = true
		}
		value, n, err := consume(f, wire, data)
		if err != nil {
			return fmt.Errorf("field %s of %s: %w", f.Name(), d.Name(), err)
		}
		data = data[n:]
		if bound.bounded {
			size := sizeOf(f, wire, value)
			if f.IsList() {
				if counts == nil {
					counts = map[protoName]int64{}
				}
				counts[f.Name()] += size
				size = counts[f.Name()]
			}
			if size > bound.max || size < bound.min {
				return fmt.Errorf("field %s of %s is %d, and may be %d to %d", f.Name(), d.Name(), size, bound.min, bound.max)
			}
		}
		switch f.Kind() {
		case protoreflect.MessageKind:
			if err := allowedIn(f.Message(), value, depth+1, left); err != nil {
				return err
			}
		case protoreflect.StringKind: // CRIU's end at a zero byte
			if bytes.IndexByte(value, 0) >= 0 {
				return fmt.Errorf("field %s of %s has a zero byte", f.Name(), d.Name())
			}
		case protoreflect.EnumKind:
			if v, _ := protowire.ConsumeVarint(value); f.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(v))) == nil {
				return fmt.Errorf("field %s of %s is %d, which is not known", f.Name(), d.Name(), int32(v))
			}
		}
	}
	return nil
}

// consume returns a field's bytes, and how many there are with their length. They are of the type that the field has; a list may be packed.
func consume(f protoreflect.FieldDescriptor, wire protowire.Type, data []byte) (value []byte, n int, err error) {
	want := protowire.VarintType
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		want = protowire.BytesType
	case protoreflect.Fixed64Kind:
		want = protowire.Fixed64Type
	}
	packed := f.IsList() && want != protowire.BytesType && wire == protowire.BytesType
	if wire != want && !packed {
		return nil, 0, fmt.Errorf("a value of type %d", wire)
	}
	n = protowire.ConsumeFieldValue(f.Number(), wire, data)
	if n < 0 {
		return nil, 0, protowire.ParseError(n)
	}
	value = data[:n]
	if want == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(data)
	}
	return value, n, nil
}

// sizeOf returns what bounds are about: how many elements of a list there are, the length of text and bytes, or else the number itself.
func sizeOf(f protoreflect.FieldDescriptor, wire protowire.Type, value []byte) int64 {
	text := f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind
	switch {
	case f.IsList() && wire == protowire.BytesType && !text && f.Kind() != protoreflect.MessageKind: // packed
		packed, _ := protowire.ConsumeBytes(value)
		if f.Kind() == protoreflect.Fixed64Kind {
			const size = 8
			return int64(len(packed)) / size
		}
		last := 0 // bytes that are the last of a number
		for _, b := range packed {
			if b < 0x80 {
				last++
			}
		}
		return int64(last)
	case f.IsList():
		return 1
	case text:
		return int64(len(value))
	}
	v, _ := protowire.ConsumeVarint(value)
	switch f.Kind() {
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.DecodeZigZag(v)
	case protoreflect.Int32Kind:
		return int64(int32(v))
	case protoreflect.Uint32Kind: // the decoders take the lower half
		return int64(uint32(v))
	case protoreflect.Uint64Kind:
		return int64(min(v, math.MaxInt64))
	}
	return int64(v)
}
