package integration

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The programs that are no servers of Debian's.
var (
	//go:embed testdata/web_app.py
	webApp string
	//go:embed testdata/web_client.py
	webClient string
)

// webRounds is how often the three are taken while they run.
const webRounds = 5

// webSite is a web server (gunicorn), its cache (Redis), and a client, each in a container on a host of its own and in that host's network. The client has a connection to each server, and the web server has one to the cache.
// Requests are counted at both ends of each.
type webSite struct {
	names []string // of the members
	hosts []*lab.Host
	ids   []string
}

const (
	cacheMember = iota
	webMember
	clientMember
)

// startWeb starts the containers, and waits until requests are answered.
func startWeb(t *testing.T, hosts ...*lab.Host) *webSite {
	t.Helper()
	s := &webSite{names: []string{"cache", "web", "client"}, hosts: hosts}
	commands := []string{
		"exec redis-server --bind 0.0.0.0 --protected-mode no --save ''",
		`echo "$APP" >/tmp/app.py; cd /tmp; exec gunicorn --bind 0.0.0.0:8000 --worker-class gthread --threads 4 --keep-alive 3600 app:app`,
		`echo "$CLIENT" >/tmp/client.py; exec python3 /tmp/client.py >/tmp/out 2>&1`,
	}
	for i, command := range commands {
		id := name(t)
		s.ids = append(s.ids, id)
		flags := []string{"--net-host"}
		for name, value := range map[string]string{"CACHE": hosts[cacheMember].Address, "WEB": hosts[webMember].Address, "APP": webApp, "CLIENT": webClient} {
			flags = append(flags, "--env", name+"="+value)
		}
		startImage(t, hosts[i], serversImage, id, flags, "bash", "-c", command)
		if i == cacheMember { // the web server connects when it starts
			eventually(t, "the cache answers", 30*time.Second, func() bool { return s.run(t, cacheMember, "redis-cli", "ping").Stdout == "PONG\n" })
		}
	}
	s.showFailed(t)
	s.goesOn(t)
	return s
}

// showFailed logs what the members have printed, if the test fails before they are removed.
func (s *webSite) showFailed(t *testing.T) {
	t.Helper()
	hosts := s.hosts
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for i, id := range s.ids {
			r := hosts[i].Ctr(cleanupContext(t), "tasks", "exec", "--exec-id", name(t), id, "sh", "-c", "tail -n 20 /tmp/out; ps axf")
			t.Logf("%s on %s:\n%s\n%s%s", s.names[i], hosts[i].Name, output(t, hosts[i], id), r.Stdout, r.Stderr)
		}
	})
}

// run runs a command in a member's container.
func (s *webSite) run(t *testing.T, member int, command ...string) lab.Result {
	t.Helper()
	return s.hosts[member].Ctr(t.Context(), append([]string{"tasks", "exec", "--exec-id", name(t), s.ids[member]}, command...)...)
}

// printed returns what the client has printed last. An answer that is wrong, or a connection that has ended, ends the test.
func (s *webSite) printed(t *testing.T) string {
	t.Helper()
	out := s.run(t, clientMember, "tail", "-n", "3", "/tmp/out").Stdout
	if strings.Contains(out, "wrong") {
		t.Fatalf("the client has printed\n%s", out)
	}
	return out
}

// count returns how many requests of the client have been answered.
func (s *webSite) count(t *testing.T) int {
	t.Helper()
	out := s.printed(t)
	all := regexp.MustCompile(`count (\d+)`).FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}

// goesOn waits until further requests are answered.
func (s *webSite) goesOn(t *testing.T) {
	t.Helper()
	before := s.count(t)
	eventually(t, "requests are answered", time.Minute, func() bool { return s.count(t) >= before+200 })
}

// stop ends the client's requests, and compares its own count with both of the cache.
func (s *webSite) stop(t *testing.T) {
	t.Helper()
	must(t, s.run(t, clientMember, "touch", "/tmp/stop"))
	var last string
	eventually(t, "the client has stopped", 30*time.Second, func() bool {
		found := regexp.MustCompile(`stopped at (\d+)`).FindStringSubmatch(s.printed(t))
		if found != nil {
			last = found[1]
		}
		return found != nil
	})
	counts := must(t, s.run(t, cacheMember, "redis-cli", "mget", "served", "counted")).Stdout
	if counts != last+"\n"+last+"\n" {
		t.Errorf("the client counts %s requests to each server; the cache counts %q", last, counts)
	}
	t.Logf("%s requests to each server", last)
}

// group runs a command of cryo for all members, of their containers or with their hosts alone.
func (s *webSite) group(t *testing.T, config string, containers bool, args ...string) lab.Result {
	t.Helper()
	for i, h := range s.hosts {
		at := h.Name
		if containers {
			at += "/" + s.ids[i]
		}
		args = append(args, "--group", s.names[i]+"="+at)
	}
	return must(t, s.hosts[0].Cryo(t.Context(), append(args, "--ssh", "ssh -F "+config, "--plain-http", "--json")...))
}

// move ends all members in step, and restores each on the host of the next one.
func (s *webSite) move(t *testing.T, config, ref string) {
	t.Helper()
	s.group(t, config, true, "checkpoint", ref)
	for i, id := range s.ids {
		remove(t.Context(), s.hosts[i], id)
	}
	s.hosts = append(s.hosts[1:len(s.hosts):len(s.hosts)], s.hosts[0])
	for i, id := range s.ids {
		cleanup(t, s.hosts[i], id)
	}
	s.showFailed(t)
	r := s.group(t, config, false, "restore", ref, "--allow", "namespaces")
	t.Logf("restored in %s", r.Elapsed)
}

// TestGroupWeb takes a web server, its cache, and a client that is connected to both in step: left running under load, then ended, and restored on other hosts. Each gets the address that another one had. The client goes on over
// the same connections, and no request is lost or made twice.
func TestGroupWeb(t *testing.T) {
	var hosts []*lab.Host
	for i := range 3 {
		h := newHost(t, fmt.Sprintf("web%d", i), lab.HostOptions{})
		if err := h.ImportRoot(t.Context(), serversImage, filepath.Join("..", "bin/programs/servers.tar")); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	config := sshd(t, t.TempDir(), hosts...)
	s := startWeb(t, hosts...)
	ref := shared.registry.Reference(name(t)) + ":site"
	for range 2 { // the second time, addresses are renewed that were renewed before
		for round := range webRounds {
			r := s.group(t, config, true, "checkpoint", ref, "--leave-running")
			t.Logf("round %d: %s, %s", round, freezes(t, r), r.Elapsed)
			s.goesOn(t)
		}
		s.move(t, config, ref)
		s.goesOn(t)
	}
	s.stop(t)
}
