package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// peers are hosts that serve each other what a registry has, by Spegel.
type peers struct {
	registry *lab.Registry
	image    string // base image in the registry
	hosts    []*peer
}

// peer is a host whose cryo asks the host's own Spegel before the registry.
type peer struct {
	*lab.Host
	spegel *lab.Program
	line   *lab.Line // from cryo to Spegel
}

// Ports that Spegel has on each host, which its peers take for granted.
const (
	spegelPort    = ":5000"
	routerPort    = ":5001"
	bootstrapPort = ":5002"
)

// The line to Spegel takes so many bytes a second, so that there is a middle of the fill.
const peerRate = 6 << 20

// newPeers starts hosts without any image, and Spegel on each. containerd's namespace is that of the lab's containers, so that base images are served too.
func newPeers(t *testing.T, names ...string) (p peers) {
	t.Helper()
	p.registry = newRegistry(t, "spegel", lab.RegistryOptions{})
	var err error
	if p.image, err = shared.a.Seed(t.Context(), p.registry, lab.ImageName); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shared.a.Ctr(cleanupContext(t), "images", "rm", p.image) })
	for _, name := range names {
		h := emptyHost(t, name, lab.HostOptions{})
		p.hosts = append(p.hosts, &peer{Host: h, line: newLine(t, &lab.Registry{Name: name, Address: h.Address + spegelPort})})
	}
	for i, h := range p.hosts {
		h.spegel, err = h.Launch("spegel", "spegel", "registry", "--log-level", "DEBUG", "--registry-addr", spegelPort, "--router-addr", h.Address+routerPort,
			"--bootstrap-kind", "http", "--http-bootstrap-addr", bootstrapPort, "--http-bootstrap-peer", "http://"+p.hosts[(i+1)%len(p.hosts)].Address+bootstrapPort,
			"--containerd-namespace", "default", "--containerd-content-path", contentRoot(h.Host),
			"--mirror-resolve-timeout", "500ms")
		if err != nil {
			t.Fatal(err)
		}
		hosts := filepath.Join(h.Dir, "certs.d")
		must(t, h.Run(t.Context(), "spegel", "configuration", "--containerd-registry-config-path", hosts, "--mirrored-registries", "http://"+p.registry.Address, "--mirror-targets", "http://"+h.line.Address))
		if err := h.Configure(fmt.Sprintf("[store]\ncontainerd = \"default\"\n[registry]\nhosts = %q\n", hosts)); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range p.hosts {
		eventually(t, "Spegel on "+h.Name, 30*time.Second, func() bool {
			if err := h.spegel.Ended(); err != nil {
				t.Fatal(err)
			}
			answer, err := http.Get("http://" + h.Address + spegelPort + "/readyz")
			return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
		})
	}
	return p
}

// served is a snapshot in the registry of some peers.
type served struct {
	frozen
	path  string           // of its repository
	size  int64            // of the blobs that are the snapshot's own
	blobs map[string]int64 // sizes by digest, those of its base image included
}

// freeze pushes a snapshot that no peer has, of memory that follows from a seed.
func (p *peers) freeze(t *testing.T, seed string) (s served) {
	t.Helper()
	s.frozen = freezeImage(t, p.image, nil, []string{"count", "--memory", "192", "--fill", "mixed", "--seed", seed}, "--push", "--plain-http", "--segment-size", "16MiB")
	s.path, s.blobs = "artifact/"+s.id, map[string]int64{}
	for _, ref := range []string{p.image, s.ref} {
		var m ocispec.Manifest
		if err := json.Unmarshal(manifestOf(t, ref), &m); err != nil {
			t.Fatal(err)
		}
		s.size = 0
		for _, blob := range append(m.Layers, m.Config) {
			s.blobs[blob.Digest.String()] = blob.Size
			s.size += blob.Size
		}
	}
	return s
}

// asked is what the registry was asked for.
type asked struct {
	blobs     map[string]int64 // bytes by digest
	requests  int              // for blobs
	bytes     int64            // of blobs
	manifests int              // requests for them
}

// asked sums up what the registry was asked for of a snapshot after so many requests.
func (p *peers) asked(t *testing.T, s served, after int) asked {
	t.Helper()
	a := asked{blobs: map[string]int64{}}
	for _, one := range requests(t, p.registry, s.path)[after:] {
		d, isBlob := strings.CutPrefix(one.what, "blobs/")
		if !isBlob {
			a.manifests++
			continue
		}
		a.requests++
		a.bytes += one.bytes
		a.blobs[d] += one.bytes
	}
	return a
}

func (a asked) String() string {
	return fmt.Sprintf("%d requests for blobs, which got %d bytes, and %d for manifests", a.requests, a.bytes, a.manifests)
}

// sent is how many bytes a host has sent over the network.
func (h *peer) sent(t *testing.T) (n int64) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", h.Pid()))
	_, counters, _ := strings.Cut(string(data), "eth0:")
	if fields := strings.Fields(counters); err == nil && len(fields) > 8 {
		_, err = fmt.Sscan(fields[8], &n) // see proc_pid_net(5)
	}
	if err != nil || n == 0 {
		t.Fatalf("%v:\n%s", err, data)
	}
	return n
}

// tooSlow matches what Spegel notes of a request that it answered with 404 because its clocks had run out: it waits for a peer for at most 100 ms once it has asked one, which a busy machine may exceed.
var tooSlow = regexp.MustCompile(`"err":"([^"]*waited too long[^"]*)".*"status":404`)

// spared fails the test if the registry was asked for a blob for which no Spegel's clock had run out.
func (p *peers) spared(t *testing.T, a asked) {
	t.Helper()
	if len(a.blobs) == 0 {
		return
	}
	var noted strings.Builder
	for _, h := range p.hosts {
		log, err := os.ReadFile(h.spegel.Log)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range tooSlow.FindAllSubmatch(log, -1) {
			fmt.Fprintf(&noted, "%s: %s\n", h.Name, found[1])
		}
	}
	t.Logf("clocks of Spegel have run out:\n%s", &noted)
	for d, n := range a.blobs {
		if !strings.Contains(noted.String(), d) {
			t.Errorf("the registry was asked for %s, and has sent %d bytes", d, n)
		}
	}
}

// pull has a host take a snapshot and its base image from the registry, which is asked for each blob once, and waits until Spegel serves them.
func (p *peers) pull(t *testing.T, h *peer, s served) {
	t.Helper()
	before := len(requests(t, p.registry, s.path))
	must(t, h.Cryo(t.Context(), "pull", s.ref, "--plain-http"))
	id := name(t)
	cleanup(t, h.Host, id)
	must(t, h.Cryo(t.Context(), "restore", s.ref, "--name", id, "--plain-http", "--wait"))
	goneOn(t, s.before, await(t, h.Host, id))
	remove(t.Context(), h.Host, id)
	a := p.asked(t, s, before)
	t.Logf("%s pulls: the registry gets %s", h.Name, a)
	if a.requests != len(a.blobs) {
		t.Errorf("the registry was asked %d times for %d blobs", a.requests, len(a.blobs))
	}
	for d, got := range a.blobs {
		if got != s.blobs[d] {
			t.Errorf("the registry has sent %d bytes of %s, which has %d", got, d, s.blobs[d])
		}
	}
	eventually(t, "Spegel's news of "+s.ref, time.Minute, func() bool {
		log, err := os.ReadFile(h.spegel.Log)
		return err == nil && strings.Contains(string(log), fmt.Sprintf(`"ref":%q`, s.ref)) // the name comes after the blobs
	})
}

// arrive restores a snapshot lazily on a host, and calls middle when the container has answered and a fifth of the snapshot has come. Nothing comes twice, the registry is asked for nothing that is there, and for nothing before the middle.
func (p *peers) arrive(t *testing.T, h *peer, s served, middle func()) (later asked) {
	t.Helper()
	before, received := len(requests(t, p.registry, s.path)), h.line.Received.Load()
	came := func() int64 { return h.line.Received.Load() - received }
	h.line.Rate.Store(peerRate)
	id := name(t)
	cleanup(t, h.Host, id)
	began := time.Now()
	c := begun(t, h.Host, "restore", s.ref, "--name", id, "--plain-http", "--wait", "--json")
	c.hello(t, h.Host, id)
	first, here := time.Since(began), came()
	eventually(t, "a fifth of the snapshot", time.Minute, func() bool {
		c.under(t)
		return came() > s.size/5
	})
	there, _ := filepath.Glob(filepath.Join(h.CryoRoot(), "store/blobs/sha256/*")) // the pattern is well formed
	earlier, by := p.asked(t, s, before), came()
	middle()
	c.under(t)
	r := said[arrivingRestored](t, <-c.ended)
	goneOn(t, s.before, await(t, h.Host, id))
	must(t, h.Cryo(t.Context(), "verify", "--pull", "never", s.ref)) // nothing was taken for damage
	remove(t.Context(), h.Host, id)

	later = p.asked(t, s, before+earlier.requests+earlier.manifests)
	t.Logf("%s answers after %.1f s, when %d of %d bytes are there, and has all after %.1f s: Spegel has sent %d bytes; the registry gets %s, and since the middle %s",
		h.Name, first.Seconds(), here, s.size, r.Pull.Seconds, came(), earlier, later)
	if !r.Lazy || here > s.size/2 {
		t.Errorf("it was not lazy: %+v", r)
	}
	if more := r.Pull.Moved - s.size; more < 0 || more > 1 { // one finds out whether parts are served
		t.Errorf("it has fetched %d bytes of %d", r.Pull.Moved, s.size)
	}
	p.spared(t, earlier)
	for d, got := range later.blobs {
		if got+earlier.blobs[d] > s.blobs[d] {
			t.Errorf("the registry has sent %d bytes of %s, which has %d", got+earlier.blobs[d], d, s.blobs[d])
		}
		if path := strings.TrimPrefix(d, "sha256:"); slices.ContainsFunc(there, func(blob string) bool { return filepath.Base(blob) == path }) {
			t.Errorf("the registry has sent %d bytes of %s, which was there", got, d)
		}
	}
	if missing := s.size - by; later.bytes > missing+1<<20 { // what comes from Spegel has headers
		t.Errorf("the registry has sent %d bytes when %d were missing", later.bytes, missing)
	}
	return later
}

// TestSpegel has three hosts with a Spegel each. One takes a snapshot and its base image from the registry, the others from it. Then peers die in the middle.
func TestSpegel(t *testing.T) {
	p := newPeers(t, "first", "second", "third")
	first, second, third := p.hosts[0], p.hosts[1], p.hosts[2]
	s := p.freeze(t, "1")
	p.pull(t, first, s)

	t.Run("others", func(t *testing.T) {
		for _, h := range p.hosts[1:] {
			t.Run(h.Name, func(t *testing.T) {
				t.Parallel()
				a := p.arrive(t, h, s, func() {})
				p.spared(t, a)
				if a.bytes > s.size/2 {
					t.Errorf("the registry has sent %s", a)
				}
			})
		}
	})
	survivor := second
	t.Run("Spegel is killed", func(t *testing.T) {
		must(t, third.Cryo(t.Context(), "rm", s.ref))
		collect(t, third.Host, "default")
		sent := map[*peer]int64{first: first.sent(t), second: second.sent(t)}
		victim := first
		p.arrive(t, third, s, func() {
			if second.sent(t)-sent[second] > first.sent(t)-sent[first] {
				victim, survivor = second, first
			}
			if err := victim.spegel.Stop(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			sent[survivor] = survivor.sent(t)
		})
		t.Logf("since Spegel on %s is killed, %s has sent %d bytes", victim.Name, survivor.Name, survivor.sent(t)-sent[survivor])
	})
	t.Run("network is cut", func(t *testing.T) {
		s := p.freeze(t, "2")
		p.pull(t, survivor, s)
		if a := p.arrive(t, third, s, func() { must(t, survivor.Run(t.Context(), "ip", "link", "set", "eth0", "down")) }); a.requests == 0 {
			t.Error("the registry was asked for nothing")
		}
	})
}
