package format

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/cryo-project/cryo/image/failure"
)

// JSONLimits bound a JSON text. A bound of 0 is none.
type JSONLimits struct {
	Bytes   int64
	Values  int // of arrays and objects, counted by commas and opening brackets: there is no value without one, but the first
	Objects int
	Depth   int // of arrays and objects within each other
}

// depth is more than any document has that is read here.
const depth = 64

// The limits of what is read.
var (
	// ManifestJSON is for manifests of images and snapshots, which have at most 15,000 segments, and for indexes in registries, referrers among them.
	ManifestJSON = JSONLimits{Bytes: 4 << 20, Values: 1 << 18, Objects: 1 << 16, Depth: depth}
	// LayoutJSON is for index.json of a layout of at most 2^17 entries.
	LayoutJSON = JSONLimits{Bytes: 64 << 20, Values: 1 << 20, Objects: 3 << 17, Depth: depth}
	// ImageJSON is for configurations of images.
	ImageJSON = JSONLimits{Bytes: 16 << 20, Values: 1 << 18, Objects: 1 << 16, Depth: depth}
	// SmallJSON is for all documents that have a few values: oci-layout, signatures, errors of registries, records beside CRIU's images.
	SmallJSON = JSONLimits{Bytes: 1 << 20, Values: 1 << 14, Objects: 1 << 12, Depth: depth}
)

// ErrJSONLimit is the kind of the error that says which limit a text is beyond.
var ErrJSONLimit = errors.New("beyond a limit of JSON")

// Unmarshal is [json.Unmarshal] of a text within the limits.
func (l JSONLimits) Unmarshal(data []byte, v any) error {
	if err := l.Check(data); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// Check returns an error of the kind [ErrJSONLimit] that says which limit a text is beyond. A text that is no JSON may pass.
func (l JSONLimits) Check(data []byte) error {
	c := counter{limits: l}
	return c.count(data)
}

// Reader passes r on until what has been read is beyond the limits; then it returns an error.
func (l JSONLimits) Reader(r io.ReadCloser) io.ReadCloser {
	return &reader{ReadCloser: r, counter: counter{limits: l}}
}

type reader struct {
	io.ReadCloser
	counter counter
}

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if beyond := r.counter.count(p[:n]); beyond != nil {
		return 0, beyond
	}
	return n, err
}

// counter counts what there is of a text that comes in parts.
type counter struct {
	limits  JSONLimits
	bytes   int64
	values  int
	objects int
	depth   int
	text    bool // inside of a string
	escaped bool // after a backslash of it
}

func (c *counter) count(data []byte) error {
	c.bytes += int64(len(data))
	if most := c.limits.Bytes; most > 0 && c.bytes > most {
		return failure.New(ErrJSONLimit, "", "its %d bytes are more than %d", c.bytes, most)
	}
	for _, b := range data {
		if c.text {
			switch {
			case c.escaped:
				c.escaped = false
			case b == '\\':
				c.escaped = true
			case b == '"':
				c.text = false
			}
			continue
		}
		switch b {
		case '"':
			c.text = true
		case ',':
			c.values++
		case '[':
			c.values++
			c.depth++
		case '{':
			c.values++
			c.objects++
			c.depth++
		case ']', '}':
			c.depth--
			continue
		default:
			continue
		}
		if err := c.within(); err != nil {
			return err
		}
	}
	return nil
}

// within returns which limit was passed.
func (c *counter) within() error {
	for _, n := range []struct {
		is, most int
		what     string
	}{
		{c.values, c.limits.Values, "values"},
		{c.objects, c.limits.Objects, "objects"},
		{c.depth, c.limits.Depth, "levels"},
	} {
		if n.most > 0 && n.is > n.most {
			return failure.New(ErrJSONLimit, "", "its JSON has more than %d %s", n.most, n.what)
		}
	}
	return nil
}
