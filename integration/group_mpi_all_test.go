package integration

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// mpiImage has Debian's OpenMPI and MPICH. "make programs-roots" makes it.
const mpiImage = "cryo.test/mpi:1"

//go:embed testdata/mpi.sh
var mpiScript string

// The programs of the ranks.
var (
	//go:embed testdata/mpi_ring.py
	openmpiRing string
	//go:embed testdata/mpich_ring.py
	mpichRing string
)

// mpiJob is a job of MPI in one container a host, all in their hosts' networks. The first has mpirun, all have sshd, as in a job of Kubernetes's MPI operator.
type mpiJob struct {
	hosts []*lab.Host
	ids   []string
}

// startMPI starts the containers, of which the first runs a command line when the others answer.
func startMPI(t *testing.T, ring, launch string, hosts ...*lab.Host) mpiJob {
	t.Helper()
	dir := t.TempDir()
	machine(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "key"))
	private, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(filepath.Join(dir, "key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, h := range hosts {
		addresses = append(addresses, h.Address)
	}
	j := mpiJob{hosts: hosts}
	for i := len(hosts) - 1; i >= 0; i-- {
		run := ""
		if i == 0 {
			run = launch
		}
		id := name(t)
		j.ids = append([]string{id}, j.ids...)
		flags := []string{"--net-host"}
		for name, value := range map[string]string{"KEY": string(private), "PUBLIC": string(public), "HOSTS": strings.Join(addresses, " "), "RUN": run, "RING": ring} {
			flags = append(flags, "--env", name+"="+value)
		}
		startImage(t, hosts[i], mpiImage, id, flags, "bash", "-c", mpiScript)
	}
	return j
}

// output returns what the first container's job has printed.
func (j mpiJob) output(t *testing.T) string {
	t.Helper()
	r := j.hosts[0].Ctr(t.Context(), "tasks", "exec", "--exec-id", name(t), j.ids[0], "tail", "-n", "20", "/tmp/out")
	return r.Stdout
}

// step returns the last step that the ring has printed.
func (j mpiJob) step(t *testing.T) int {
	t.Helper()
	all := regexp.MustCompile(`step (\d+)`).FindAllStringSubmatch(j.output(t), -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}

// goesOn waits until the job has made further steps.
func (j mpiJob) goesOn(t *testing.T) {
	t.Helper()
	before := j.step(t)
	t.Cleanup(func() {
		if t.Failed() {
			for i, h := range j.hosts {
				r := h.Ctr(cleanupContext(t), "tasks", "exec", "--exec-id", name(t), j.ids[i], "sh", "-c", "tail -n 20 /tmp/out /tmp/sshd.log; ps axf")
				t.Logf("%s on %s:\n%s\n%s%s", j.ids[i], h.Name, output(t, h, j.ids[i]), r.Stdout, r.Stderr)
			}
		}
	})
	eventually(t, "the job goes on", time.Minute, func() bool { return j.step(t) > before+1 })
	if out := j.output(t); strings.Contains(out, "wrong") {
		t.Fatalf("the job prints\n%s", out)
	}
}

// members are the flags that name the containers, or the hosts alone.
func (j mpiJob) members(containers bool) (flags []string) {
	for i, h := range j.hosts {
		at := h.Name
		if containers {
			at += "/" + j.ids[i]
		}
		flags = append(flags, "--group", fmt.Sprintf("rank%d=%s", i, at))
	}
	return flags
}

// mpiWay is a way to start a job: in the first container's shell, with the variable HOSTS. rounds is how often the job is taken while it runs.
type mpiWay struct {
	name, launch string
	rounds       int
}

const (
	openmpi = "mpirun.openmpi --allow-run-as-root --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 "
	mpich   = "mpiexec.mpich -launcher ssh -iface eth0 "
)

// TestGroupOpenMPI takes jobs of Debian's OpenMPI in step.
func TestGroupOpenMPI(t *testing.T) {
	takeMPI(t, openmpiRing, []mpiWay{
		{"2 ranks", openmpi + "-H $(echo $HOSTS | tr ' ' ,) python3 /tmp/ring.py", 20},
		{"4 ranks", openmpi + "-H $(echo $HOSTS | sed 's/ /:2,/; s/$/:2/') python3 /tmp/ring.py", 3},
	})
}

// TestGroupMPICH takes jobs of Debian's MPICH in step.
func TestGroupMPICH(t *testing.T) {
	takeMPI(t, mpichRing, []mpiWay{
		{"2 ranks", mpich + "-hosts $(echo $HOSTS | tr ' ' ,) python3 /tmp/ring.py", 20},
		{"4 ranks", mpich + "-n 4 -hosts $(echo $HOSTS | sed 's/ /:2,/; s/$/:2/') python3 /tmp/ring.py", 3},
	})
}

// takeMPI takes jobs in step: left running under load, ended, and restored on other hosts with other addresses.
func takeMPI(t *testing.T, ring string, ways []mpiWay) {
	t.Helper()
	var hosts []*lab.Host
	for i := range 3 {
		h := newHost(t, "mpi"+strconv.Itoa(i), lab.HostOptions{})
		if err := h.ImportRoot(t.Context(), mpiImage, filepath.Join("..", "bin/programs/mpi.tar")); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	config := sshd(t, t.TempDir(), hosts...)
	group := func(t *testing.T, args ...string) lab.Result {
		t.Helper()
		return must(t, hosts[0].Cryo(t.Context(), append(args, "--ssh", "ssh -F "+config, "--plain-http", "--json")...))
	}
	for _, m := range ways {
		t.Run(m.name, func(t *testing.T) {
			j := startMPI(t, ring, m.launch, hosts[:2]...)
			j.goesOn(t)
			ref := shared.registry.Reference(name(t)) + ":job"
			for round := range m.rounds {
				r := group(t, append([]string{"checkpoint", ref, "--leave-running"}, j.members(true)...)...)
				t.Logf("round %d: %s, %s", round, freezes(t, r), r.Elapsed)
				j.goesOn(t)
			}
			group(t, append([]string{"checkpoint", ref}, j.members(true)...)...)
			for i, id := range j.ids {
				remove(t.Context(), j.hosts[i], id)
			}
			j.hosts = []*lab.Host{hosts[2], hosts[0]} // one address is new, and one was the other's
			for i, id := range j.ids {
				cleanup(t, j.hosts[i], id)
			}
			r := group(t, append([]string{"restore", ref, "--allow", "namespaces"}, j.members(false)...)...)
			t.Logf("restored in %s", r.Elapsed)
			j.goesOn(t)
			group(t, append([]string{"checkpoint", ref, "--leave-running"}, j.members(true)...)...)
			j.goesOn(t)
			for i, id := range j.ids {
				remove(t.Context(), j.hosts[i], id)
			}
		})
	}
}

// freezes returns how long each member stood still.
func freezes(t *testing.T, r lab.Result) string {
	t.Helper()
	all := regexp.MustCompile(`"freeze": ([0-9.]+)`).FindAllStringSubmatch(r.Stdout, -1)
	var texts []string
	for _, m := range all {
		texts = append(texts, m[1])
	}
	return "frozen for " + strings.Join(texts, ", ") + " s"
}
