package registry

import (
	"net/http"
	"syscall"
	"testing"
	"time"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPatient: a registry that begins after some refused connections is reached by who is patient, and by nobody else.
func TestPatient(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{false, true} {
		refused := 0
		r := newTransport(roundTripper(func(*http.Request) (*http.Response, error) {
			if refused++; refused <= 4 {
				return nil, syscall.ECONNREFUSED
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}), nil, timing{wait: time.Microsecond}.withDefaults(), Options{Patient: patient})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry.invalid/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.RoundTrip(req)
		if (err == nil) != patient {
			t.Errorf("patient %v: %v after %d attempts", patient, err, refused)
		}
		if err == nil {
			resp.Body.Close()
		}
	}
}
