package integration

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestContractMoved restores a program into a network with another address.
func TestContractMoved(t *testing.T) {
	a, b := pair(t)
	const network = "/run/netns/contract"
	for h, address := range map[*lab.Host]string{a: "192.0.2.1/24", b: "192.0.2.2/24"} {
		must(t, h.Run(t.Context(), "ip", "netns", "add", "contract"))
		t.Cleanup(func() {
			must(t, h.Run(cleanupContext(t), "ip", "netns", "delete", "contract"))
			must(t, h.Run(cleanupContext(t), "umount", "/run/netns"))
		})
		must(t, h.Run(t.Context(), "ip", "-netns", "contract", "address", "add", address, "dev", "lo"))
	}
	id := participates(t, a, participant, "--with-ns", "network:"+network)
	j := journey{id: id}
	checkpoint(t, a, j)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--network-ns", network, "--allow", "all"))
	c, text := restoredEvent(t, b, id)
	if !slices.Equal(c.Addresses.Was, []string{"192.0.2.1/24"}) || !slices.Equal(c.Addresses.Is, []string{"192.0.2.2/24"}) {
		t.Errorf("the program reads %s", text)
	}
}

// TestContractUserMappings has a program of root's, and of another user's, whose ids on the host are others, with a tmpfs for its control directory. It is restored a second time from a
// snapshot of the restored one.
func TestContractUserMappings(t *testing.T) {
	for _, user := range []string{"0:0", "7:8"} {
		t.Run(user, func(t *testing.T) { restoreMapped(t, user) })
	}
}

func restoreMapped(t *testing.T, user string) {
	a, b := pair(t)
	id := participates(t, a, participant, "--user", user, "--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536", "--mount", "type=tmpfs,src=tmpfs,dst=/run,options=mode=1777")
	j := journey{id: id}
	checkpoint(t, a, j)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--wait"))
	first, _ := restoredEvent(t, b, id)
	checkpoint(t, b, j)
	remove(t.Context(), b, id)
	must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http"))
	if second, text := restoredEvent(t, b, id); second.Generation == first.Generation || second.Digest == first.Digest {
		t.Errorf("the program reads %s", text)
	}
}

// TestContractPod restores a program by an annotation into another pod.
func TestContractPod(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	path := "contract/" + id + ":1"
	ref := shared.registry.Reference(path)
	flags := slices.Concat(newPod(t, a, "old"), inPod("app", shared.image, "io.example.shard=1"), control)
	must(t, runPod(t, a, id, shared.image, flags, "sh", "-c", participant))
	prints(t, a, id, "waits")
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))

	h := annotationHost(t, "contract", shared.registry.Address)
	pullImage(t, h, shared.image)
	flags = slices.Concat(newPod(t, h, "new"), inPod("app", shared.image, "io.example.shard=2", restoreAnnotation+"="+ref), control)
	must(t, runPod(t, h, id, shared.image, flags, "sh", "-c", participant))
	c, text := restoredEvent(t, h, id)
	value := func(of map[string]*string, name string) string {
		if of[name] == nil {
			return ""
		}
		return *of[name]
	}
	if c.Hostname.Was != "old" || c.Hostname.Is != "new" || value(c.Environment, "POD_NAME") != "new" || value(c.Annotations, "io.example.shard") != "2" || c.Snapshot != ref {
		t.Errorf("the program reads %s", text)
	}
	if same := must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "cat", id, "cat", "/.cryo/restored.json")).Stdout; strings.ReplaceAll(same, "\n", "")+"\n" != text {
		t.Errorf("the program reads %s, and elsewhere %s", text, same)
	}
	restoreOver(t, h)
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", ref))
}

// TestContractUntold: a program that cannot be told of its restore is not restored, and nothing is left of it. What it has put into its directory is neither followed nor waited for.
func TestContractUntold(t *testing.T) {
	a, b := pair(t)
	for name, test := range map[string]struct {
		prepare string
		flags   []string
		says    string
	}{
		"not its directory": {"true", []string{"--read-only", "--env", "CRYO_CONTROL_DIR=/"}, "make restored.json: read-only file system"},
		"a relative path":   {"true", []string{"--env", "CRYO_CONTROL_DIR=run"}, "CRYO_CONTROL_DIR=run"},
		"a directory":       {"mkdir -p " + controlDir + "/restored.json", nil, "write restored.json: "},
		"no FIFO":           {"mkdir -p " + controlDir + "; ln -s /dev/null " + controlDir + "/events", nil, "events: it is no FIFO"},
		"a file":            {"mkdir -p /run; touch " + controlDir, nil, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			id := participates(t, a, test.prepare+`; echo waits; while :; do sleep 1; done`, test.flags...)
			j := journey{id: id}
			checkpoint(t, a, j)
			r := b.Cryo(t.Context(), "restore", j.ref(), "--plain-http")
			cleanup(t, b, id)
			if r.Code == 0 || !strings.Contains(r.Stderr, test.says) || !strings.Contains(r.Stderr, "hint: ") {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
			if _, status, _ := b.Task(t.Context(), id); status != "" {
				t.Errorf("%s is %s", id, status)
			}
		})
	}
	// A link to a directory is as good as the directory, in the container's own root.
	id := participates(t, a, `mkdir -p /real /run; ln -s /real `+controlDir+`; ln -s /etc/nothing /real/restored.json; echo waits; while :; do sleep 1; done`)
	j := journey{id: id}
	checkpoint(t, a, j)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--wait"))
	if !slices.Contains(upper(t, b, id), "real") || !slices.Contains(names(t, filepath.Join(upperDir(t, b, id), "real")), "restored.json") {
		t.Error("the file is not where the link leads")
	}
}

// TestContractGPU: the file says which GPU has become which, with either engine.
func TestContractGPU(t *testing.T) {
	a, b := gpuPair(t)
	for engine, flags := range engines {
		t.Run(engine, func(t *testing.T) {
			id := name(t)
			ref := shared.registry.Reference("contract/" + id + ":1")
			startGPU(t, a, id, slices.Concat(oneGPU, flags, []string{"--env", "CRYO_CONTROL_DIR=/"}))
			for _, h := range []*lab.Host{a, b} {
				forget(t, h, ref)
			}
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
			cleanup(t, b, id)
			must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--device", "nvidia.com/gpu=1"))
			await(t, b, id)
			text := read(t, filepath.Join(upperDir(t, b, id), "restored.json"))
			var c restoredChanges
			if err := json.Unmarshal([]byte(text), &c); err != nil || len(c.GPUs) != 1 || c.GPUs[0].Was != a.UUID(0) || c.GPUs[0].Is != b.UUID(1) {
				t.Errorf("%v: the program reads %s", err, text)
			}
		})
	}
}

// dynamo is a program by the contract of ai-dynamo/snapshot, which knows nothing of cryo's: it says that it is ready, and looks for a file once in a while.
const dynamo = `rm -f $SNAPSHOT_CONTROL_DIR/ready-for-snapshot; echo waits; echo ready >$SNAPSHOT_CONTROL_DIR/ready-for-snapshot
while [ ! -e $SNAPSHOT_CONTROL_DIR/restore-complete ]; do sleep 0.1; done; touch $SNAPSHOT_CONTROL_DIR/app-restore-ready; while :; do sleep 1; done`

// TestContractDynamo restores a program of ai-dynamo's contract into another pod, whose control directory is an empty volume, as theirs is.
func TestContractDynamo(t *testing.T) {
	a, _ := pair(t)
	for _, variable := range []string{"SNAPSHOT_CONTROL_DIR", "DYN_SNAPSHOT_CONTROL_DIR"} {
		t.Run(variable, func(t *testing.T) {
			program := strings.ReplaceAll(dynamo, "SNAPSHOT_CONTROL_DIR", variable)
			id := name(t)
			ref := shared.registry.Reference("contract/" + id + ":1")
			in := []string{"--env", variable + "=/emptydir"}
			must(t, runPod(t, a, id, shared.image, slices.Concat(newPod(t, a, "old"), inPod("app", shared.image), in), "sh", "-c", program))
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--when-ready", "--push", "--plain-http"))
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "rm", ref))

			h := annotationHost(t, "dynamo", shared.registry.Address)
			pullImage(t, h, shared.image)
			must(t, runPod(t, h, id, shared.image, slices.Concat(newPod(t, h, "new"), inPod("app", shared.image, restoreAnnotation+"="+ref), in), "sh", "-c", "sleep 10000"))
			control := filepath.Join(h.Dir, "pods/new/emptydir")
			eventually(t, "the program goes on", 30*time.Second, func() bool { return slices.Contains(names(t, control), "app-restore-ready") })
			if all := names(t, control); !slices.Contains(all, "restored.json") || slices.Contains(all, "ready-for-snapshot") {
				t.Errorf("the volume has %v", all)
			}
			restoreOver(t, h)
			remove(t.Context(), h, id)
			must(t, h.Cryo(t.Context(), "rm", ref))
		})
	}
}
