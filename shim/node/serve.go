package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cryo-project/cryo/image/failure"
)

// listen listens at HOST:PORT or unix:PATH. A socket that is left of a service that was killed is replaced.
func listen(ctx context.Context, address string) (net.Listener, error) {
	path, unix := strings.CutPrefix(address, "unix:")
	network := "tcp"
	if unix {
		network, address = "unix", path
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listen at %s: %w", path, err)
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, failure.New(errdefs.ErrUnavailable, "name another address with --listen", "listen for metrics: %v", err)
	}
	return l, nil
}

// health is what /healthz says.
type health struct {
	Containerd bool    `json:"containerd"`          // it is connected
	File       string  `json:"file,omitempty"`      // what is wrong with it
	Snapshots  []State `json:"snapshots,omitempty"` // over a socket of this host only: every pod reaches the port, without a login
}

// serve answers /metrics and /healthz until ctx ends. /healthz is 200, or 503 where containerd is away or the file is wrong; what cannot be prewarmed is no fault of the service.
func (v *service) serve(ctx context.Context, l net.Listener) {
	mux, public := http.NewServeMux(), l.Addr().Network() != "unix"
	mux.Handle("GET /metrics", promhttp.HandlerFor(v.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := health{Containerd: v.connected.Load()}
		if v.warmer != nil {
			list, err := v.warmer.all()
			switch {
			case err != nil && public:
				h.File = "cannot be used, see the log"
			case err != nil:
				h.File = err.Error()
			}
			if !public {
				h.Snapshots = list
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if !h.Containerd || h.File != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h) // the client has gone
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(last) // removes the socket
		_ = server.Close()
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		v.o.Log(Entry{What: "serve metrics", Err: err})
	}
}
