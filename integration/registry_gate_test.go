package integration

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// gate stands in front of a registry and holds up the bodies of a snapshot's segments, but not parts of them that somebody waits for, until it is opened.
type gate struct {
	address  string
	segments map[string]bool // digests
	parts    atomic.Int64    // requests for parts of segments
	held     atomic.Int64    // bodies that were held up
	ranges   atomic.Bool     // parts are served
	strict   bool            // parts are held up too, but for those of one byte, which find out whether there are any
	damaged  string          // digest of one whose first byte is another, also in parts; empty: none
	mends    bool            // it is damaged in the first answer only
	damages  atomic.Int64    // answers with it

	bad       func(*http.Response) // changes answers with bytes of segments; nil: it does not
	badParts  atomic.Int64         // how many parts that somebody waits for it changes
	badBodies atomic.Int64         // likewise for what nobody waits for

	handler http.Handler
	server  *http.Server
	once    sync.Once
	opened  chan struct{}
}

// newGate is a gate for the snapshot of this path.
func newGate(t *testing.T, r *lab.Registry, path string) *gate {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(manifestOf(t, r.Reference(path)), &m); err != nil {
		t.Fatal(err)
	}
	segments := make(map[string]bool)
	for _, d := range m.Layers {
		if d.MediaType == image.MediaTypeSegment {
			segments[d.Digest.String()] = true
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: l.Addr().String(), segments: segments, opened: make(chan struct{})}
	g.ranges.Store(true)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Address})
	proxy.FlushInterval = -1
	proxy.ModifyResponse = g.hold
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) } // clients hang up
	g.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.ranges.Load() {
			r.Header.Del("Range")
		}
		proxy.ServeHTTP(w, r)
	})
	g.serve(l)
	t.Cleanup(g.die)
	return g
}

func (g *gate) serve(l net.Listener) {
	g.server = &http.Server{Handler: g.handler}
	go func() { _ = g.server.Serve(l) }() // it ends with the test
}

// back answers again after die.
func (g *gate) back(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	g.serve(l)
}

// hold looks at an answer of the registry.
func (g *gate) hold(a *http.Response) error {
	digest := path.Base(a.Request.URL.Path)
	if a.Request.Method != http.MethodGet {
		return nil
	}
	if from := a.Header.Get("Content-Range"); digest == g.damaged && (from == "" || strings.HasPrefix(from, "bytes 0-")) && (g.damages.Add(1) == 1 || !g.mends) {
		a.Body = &flippedBody{ReadCloser: a.Body}
	}
	if !g.segments[digest] {
		return nil
	}
	wanted := a.Request.Header.Get("Range")
	isPart := wanted != "" && !strings.HasSuffix(wanted, "-") && a.Request.Header.Get("Priority") == ""
	if isPart {
		g.parts.Add(1)
	}
	spoils := &g.badBodies
	if isPart {
		spoils = &g.badParts
	}
	if g.bad != nil && spoils.Load() > 0 && spoils.Add(-1) >= 0 {
		g.bad(a)
	}
	if !isPart || g.strict && wanted != "bytes=0-0" {
		a.Body = &heldBody{a.Body, g, a.Request.Context()}
	}
	return nil
}

// flippedBody has another first byte.
type flippedBody struct {
	io.ReadCloser
	begun bool
}

func (b *flippedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && !b.begun {
		p[0] ^= 1
		b.begun = true
	}
	return n, err
}

// open lets everything pass.
func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// die hangs up on everybody and answers no more.
func (g *gate) die() { _ = g.server.Close() }

type heldBody struct {
	io.ReadCloser
	gate *gate
	ctx  context.Context
}

// Read gives nothing before the gate is open.
func (b *heldBody) Read(p []byte) (int, error) {
	select {
	case <-b.gate.opened:
	default:
		b.gate.held.Add(1)
		select {
		case <-b.gate.opened:
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	return b.ReadCloser.Read(p)
}
