package integration

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestPoolDaemon: members outlive containerd, and are taken when it is back.
func TestPoolDaemon(t *testing.T) {
	h := newHost(t, "pooldaemon", lab.HostOptions{})
	ref, before := poolFor(t, h, "2", "count", "--memory", "8")
	members := standing(t, h, filled(t, h, ref, 2))
	if err := h.StopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := h.Cryo(t.Context(), "restore", ref); r.Code == 0 {
		t.Error("a container was taken without containerd")
	}
	if err := h.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := standing(t, h, filled(t, h, ref, 2)); !slices.Equal(now, members) {
		t.Errorf("the pool has %s, and had %s", now, members)
	}
	c := take(t, h, ref)
	if c.Pool == nil || !c.Pool.Taken {
		t.Errorf("%s was restored: %+v", c.Container, c.Pool)
	}
	await(t, h, c.Container)
	filled(t, h, ref, 2)
	remove(t.Context(), h, c.Container)
	released(t, h, ref, without(before, nil, []string{"process "}), "process ")
}

// TestPoolReboot: no member outlives its host, and the pool is filled again by the next restore.
func TestPoolReboot(t *testing.T) {
	h := newHost(t, "poolreboot", lab.HostOptions{})
	ref, before := poolFor(t, h, "2", "count", "--memory", "8")
	old := standing(t, h, filled(t, h, ref, 2))
	if err := h.Reboot(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if p := poolOf(t, h, ref); p == nil || p.Ready != 0 || p.Wanted != 2 || p.Memory != 0 {
		t.Errorf("after a restart of the host there is %+v", p)
	}
	c := take(t, h, ref)
	if c.Pool == nil || c.Pool.Taken {
		t.Errorf("%s was taken: %+v", c.Container, c.Pool)
	}
	await(t, h, c.Container)
	for _, id := range standing(t, h, filled(t, h, ref, 2)) {
		if slices.Contains(old, id) {
			t.Errorf("%s was in the pool before", id)
		}
	}
	remove(t.Context(), h, c.Container)
	released(t, h, ref, without(before, nil, []string{"process "}), "process ")
	// containerd clears away what it has on disk of tasks before the restart when it begins with a task there.
	if err := errors.Join(h.StopDaemon(syscall.SIGTERM), h.StartDaemon(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// TestPoolMoved: when the name is that of another snapshot, no container of the old one is taken, and the pool gets those of the new one.
func TestPoolMoved(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "1", "count", "--memory", "8")
	old := standing(t, h, filled(t, h, ref, 1))[0]
	other := snapshotOf(t, h, "count", "--memory", "8", "--seed", "7")
	must(t, h.Cryo(t.Context(), "tag", other, ref))
	c := take(t, h, ref)
	if c.Pool == nil || c.Pool.Taken || c.Digest != inspect(t, h, other).Digest {
		t.Errorf("%s of %s was taken: %+v", c.Container, c.Digest, c.Pool)
	}
	noRefill(t, h)
	if m := standing(t, h, filled(t, h, ref, 1))[0]; m == old {
		t.Errorf("%s is in the pool still", m)
	}
	next := take(t, h, ref)
	if next.Pool == nil || !next.Pool.Taken || next.Digest != c.Digest {
		t.Errorf("%s of %s was restored: %+v", next.Container, next.Digest, next.Pool)
	}
	for _, id := range []string{c.Container, next.Container} {
		await(t, h, id)
		remove(t.Context(), h, id)
	}
	noRefill(t, h)
	must(t, h.Cryo(t.Context(), "rm", other))
	must(t, h.Cryo(t.Context(), "rm", ref))
	if left := without(trace(t, h), before, nil); len(left) > 0 {
		t.Errorf("left: %s", left)
	}
}

// TestPoolCgroup2 has a pool on a host with cgroup v2, where a process that stands still can be killed.
func TestPoolCgroup2(t *testing.T) {
	h := newHost(t, "poolunified", lab.HostOptions{Unified: true})
	before := without(trace(t, h), nil, []string{"process "})
	id, ref := name(t), "pool/"+name(t)+":1"
	task := created(t, h, id, cryoRuntime, nil, cio.NullIO, []oci.SpecOpts{oci.WithoutRunMount}, "workload", "count", "--memory", "16")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	then := await(t, h, id)
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	pause(t, h, ref, "3")
	members := filled(t, h, ref, 3).Members
	standing(t, h, filled(t, h, ref, 3))
	if err := unix.Kill(members[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ends", 10*time.Second, func() bool { return errors.Is(unix.Kill(members[0].PID, 0), unix.ESRCH) })
	if err := unix.Kill(shimOf(t, h, members[1].Container), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ends with its shim", 10*time.Second, func() bool { return poolOf(t, h, ref).Ready == 1 })
	c := take(t, h, ref)
	if c.Container != members[2].Container || c.Pool == nil || !c.Pool.Taken {
		t.Errorf("%s was taken: %+v", c.Container, c.Pool)
	}
	wentOn(t, then, await(t, h, c.Container))
	must(t, h.Ctr(t.Context(), "tasks", "delete", "--force", standing(t, h, filled(t, h, ref, 3))[0]))
	noRefill(t, h)
	remove(t.Context(), h, c.Container)
	must(t, h.Cryo(t.Context(), "prewarm", "rm", ref))
	must(t, h.Cryo(t.Context(), "rm", ref))
	wantTrace(t, h, before, "process ")
}
