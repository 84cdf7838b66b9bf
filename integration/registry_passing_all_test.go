package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// answered returns what makes another answer of one: with this status and body.
func answered(status int, body string) func(*http.Response) {
	return func(a *http.Response) {
		a.Body.Close()
		a.StatusCode, a.Status = status, fmt.Sprintf("%d %s", status, http.StatusText(status))
		a.Header.Del("Content-Range")
		setBody(a, []byte(body))
	}
}

// setBody has an answer have another body.
func setBody(a *http.Response, body []byte) {
	a.Body, a.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	a.Header.Set("Content-Length", fmt.Sprint(len(body)))
}

// shortened cuts the body of an answer off.
func shortened(a *http.Response) {
	a.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(a.Body, 1000), a.Body}
}

// garbled has an answer bring as many other bytes.
func garbled(a *http.Response) {
	a.Body.Close()
	setBody(a, bytes.Repeat([]byte{0xa5}, int(a.ContentLength)))
}

// badAnswers are answers of registries and of what stands before them, which pass.
var badAnswers = map[string]func(*http.Response){
	"404":                     answered(http.StatusNotFound, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`),
	"403":                     answered(http.StatusForbidden, `{"errors":[{"code":"DENIED"}]}`),
	"401":                     answered(http.StatusUnauthorized, ""),
	"416":                     answered(http.StatusRequestedRangeNotSatisfiable, ""),
	"500":                     answered(http.StatusInternalServerError, "sorry"),
	"empty 200":               answered(http.StatusOK, ""),
	"200 with a page of HTML": answered(http.StatusOK, "<html>maintenance</html>"),
	"wrong Content-Range":     func(a *http.Response) { a.Header.Set("Content-Range", "bytes 7-8/9") },
	"short body":              shortened,
	"garbage":                 garbled,
}

// TestPassing has the registry give a bad answer to the container whose memory is on its way, and to its pull: the container runs on, its memory is right, and so is the
// snapshot in the store.
func TestPassing(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	for name, bad := range badAnswers {
		t.Run(name, func(t *testing.T) { passes(t, b, path, bad, 1) })
	}
	t.Run("garbage again", func(t *testing.T) { passes(t, b, path, garbled, 3) })
}

// passes restores while so many answers are bad for who waits, and for the pull.
func passes(t *testing.T, b *lab.Host, path string, bad func(*http.Response), times int64) {
	g := newGate(t, shared.registry, path)
	g.bad = bad
	ref, id := g.address+"/"+path, name(t)
	cleanup(t, b, id)
	forget(t, b, ref)
	c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait")
	c.hello(t, b, id)
	g.badParts.Store(times)
	await(t, b, id) // which touches all, of which nothing has come by itself
	if left := g.badParts.Load(); left > 0 {
		t.Errorf("%d bad answers were not asked for", left)
	}
	c.under(t)
	g.badBodies.Store(times)
	g.open()
	must(t, <-c.ended)
	await(t, b, id)
	must(t, b.Cryo(t.Context(), "verify", "--pull", "never", ref))
	must(t, b.Cryo(t.Context(), "rm", ref))
	remove(t.Context(), b, id)
}

// TestPassingFull has the store's disk be full while memory is on its way, for a while or for good: the container runs on, and gets its memory. The store then has all of
// the snapshot, or no name for it.
func TestPassingFull(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	for _, test := range []struct {
		name string
		full time.Duration // 0: for good
	}{{"for five seconds", 5 * time.Second}, {"for good", 0}} {
		t.Run(test.name, func(t *testing.T) {
			inside, outside := small(t, b, 100)
			g := newGate(t, shared.registry, path)
			g.bad = badAnswers["404"]
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait", "--root", inside)
			c.hello(t, b, id)
			eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
			filler := filepath.Join(inside, "filler")
			b.Run(t.Context(), "dd", "if=/dev/zero", "of="+filler, "bs=64k") // until there is no room
			if test.full > 0 {
				g.badParts.Store(1 << 30) // nor does it come otherwise
			}
			g.open()
			if test.full > 0 {
				time.Sleep(test.full)
				c.under(t)
				must(t, b.Run(t.Context(), "rm", filler))
				g.badParts.Store(0)
				must(t, <-c.ended)
				await(t, b, id)
				must(t, b.Cryo(t.Context(), "verify", "--pull", "never", ref, "--root", inside))
			} else {
				refusal(t, <-c.ended, codeFull, id+" runs and has all its memory")
				await(t, b, id)
				must(t, b.Run(t.Context(), "rm", filler))
				if r := b.Cryo(t.Context(), "verify", "--pull", "never", ref, "--root", inside); r.Code != codeNotFound {
					t.Errorf("verify of what could not be stored says %d:\n%s", r.Code, r.Stderr)
				}
				for _, line := range traceStore(t, outside) {
					if strings.Contains(line, "partial") {
						t.Error("left in the store:", line)
					}
				}
			}
			eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
			remove(t.Context(), b, id)
		})
	}
}

// TestGPUArrivingPassing has the registry give bad answers, and the store's disk be full, while the memory of a container with GPUs is on its way to processes that are
// there: the container runs in the end.
func TestGPUArrivingPassing(t *testing.T) {
	a, b := gpuPair(t)
	ownOrder(t, b)
	path, before := pushedGPU(t, a, slices.Concat(heeding, someContext), "--blocks", "3,40")
	_, device := segmentsOf(t, path)
	for _, what := range []string{"404", "403", "empty 200", "garbage", "full"} {
		t.Run(what, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			g.segments, g.strict, g.bad = some(device), true, badAnswers[what]
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			root, _ := small(t, b, 200)
			filled := filling(t, b)
			c := begun(t, b, "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices")
			eventually(t, "the first bytes on a device", 30*time.Second, func() bool { c.under(t); return g.held.Load() > 0 && filled() })
			eventually(t, "memory of the processes", 30*time.Second, func() bool { // before, the restore would be undone
				return slices.ContainsFunc(strings.Split(read(t, b.Log()), "\n"), func(line string) bool {
					return strings.Contains(line, "the memory of a restored container is there") && strings.Contains(line, id)
				})
			})
			if what == "full" {
				b.Run(t.Context(), "dd", "if=/dev/zero", "of="+filepath.Join(root, "filler"), "bs=64k") // until there is no room
			} else {
				g.die()
				g.badBodies.Store(2)
				g.badParts.Store(2)
				g.back(t)
			}
			g.open()
			r := quietly(<-c.ended)
			if what == "full" {
				refusal(t, r, codeFull, id+" runs and has all its memory")
			} else {
				must(t, r)
				must(t, b.Cryo(t.Context(), "--root", root, "verify", "--pull", "never", "--allow", "all", ref))
			}
			goneOn(t, before, unharmed(t, b, id, before))
			remove(t.Context(), b, id)
		})
	}
}
