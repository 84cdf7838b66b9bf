package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// operation is something that a user does.
type operation struct {
	name      string
	about     string
	engine    string   // of containers with GPUs: driver or keeper; "": without
	second    bool     // on host b, which has no snapshot
	stock     bool     // a client that does not undo
	fresh     bool     // the container is made by it
	processes []string // that take part, and that is to be harmed
	events    []string // steps of it, see watch.go
	flips     []string // where it reads the snapshot: store, registry-data
	stores    bool     // it writes to cryo's store
	fills     []string // file systems that it writes to, see places
	words     func(r *round) []string
	prepare   func(ctx context.Context, r *round) error
	// judge looks at what has become of it.
	judge func(ctx context.Context, r *round) (verdict, error)
	// ready has all be so again that the same command can be given once more, and clean removes what it has made.
	ready, clean func(ctx context.Context, r *round) error
}

var (
	around     = []string{"containerd", "shim", "criu", "runc", "cryo"}
	dumpers    = append([]string{"checkpoint"}, around...)
	restorers  = append([]string{"restore"}, around...)
	dumpSteps  = []string{"work", "criu", "runc", "log", "dumped", "blob", "tag"}
	everywhere = []string{"store", "containerd-root", "run"}
	startSteps = []string{"work", "bundle", "state", "shim", "runc", "criu", "log", "restore"}
)

// operations are all there are.
var operations = []*operation{
	checkpoint("checkpoint", "", false, false), checkpoint("checkpoint-push", "", false, true),
	checkpoint("end", "", true, false), checkpoint("end-push", "", true, true),
	checkpoint("checkpoint-driver", "driver", false, false), checkpoint("end-driver", "driver", true, false),
	checkpoint("checkpoint-keeper", "keeper", false, false), checkpoint("end-keeper", "keeper", true, true),
	{
		name: "push", about: "cryo push", flips: []string{"store"}, fills: []string{"store"}, stores: true, processes: []string{"registry", "cryo"},
		words: func(r *round) []string { return []string{"cryo", "push", r.golden(), r.ref, "--plain-http"} },
		judge: judgePush,
	},
	{
		name: "pull", about: "cryo pull", flips: []string{"registry-data"}, fills: []string{"store"}, stores: true, second: true, processes: []string{"registry", "cryo"}, events: []string{"work", "partial", "blob", "tag"},
		words: func(r *round) []string { return []string{"cryo", "pull", r.golden(), "--plain-http"} },
		judge: func(ctx context.Context, r *round) (verdict, error) { return judgeLocal(ctx, r, false) },
		clean: removeGolden,
	},
	{
		name: "rm", about: "cryo rm", fills: []string{"store"}, stores: true, second: true, processes: []string{"cryo"}, events: []string{"tag"},
		prepare: pullGolden, ready: pullGolden,
		words: func(r *round) []string { return []string{"cryo", "rm", r.golden()} },
		judge: func(ctx context.Context, r *round) (verdict, error) { return judgeLocal(ctx, r, true) },
		clean: removeGolden,
	},
	restore("restore", "", "cryo restore from the local store", false),
	restore("restore-pull", "", "cryo restore from the registry, which runs before its memory is there", true),
	restore("restore-wait", "", "cryo restore --wait from the registry", true, "--wait"),
	restore("restore-eager", "", "cryo restore --eager from the local store", false, "--eager"),
	restore("restore-driver", "driver", "cryo restore from the local store, with a GPU", false),
	restore("restore-keeper", "keeper", "cryo restore from the local store, with a GPU", false),
	restore("pull-keeper", "keeper", "cryo restore from the registry, with a GPU", true),
	prewarm("prewarm", "", "cryo prewarm, and a restore of it"),
	prewarm("prewarm-keeper", "keeper", "cryo prewarm --gpu, and a restore of it", "--gpu", "--device", gpuDevice),
	{
		name: "ctr-checkpoint", stock: true, about: "ctr containers checkpoint --task --rw", processes: []string{"containerd", "shim", "criu", "runc", "ctr"},
		events: []string{"criu", "runc"}, fills: []string{"containerd-root", "run"}, prepare: startSubject,
		words: func(r *round) []string {
			return []string{"ctr", "containers", "checkpoint", "--task", "--rw", "--image", subject, "chaos.test/" + r.id + ":1"}
		},
		judge: func(ctx context.Context, r *round) (verdict, error) {
			state, err := r.look(ctx, r.host, subject, r.world.life)
			return judgeStock(r.seen(state), false), err
		},
		ready: func(ctx context.Context, r *round) error {
			return errors.Join(removeStock(ctx, r), startSubject(ctx, r))
		},
		clean: removeStock,
	},
	{
		name: "ctr-restore", stock: true, about: "ctr containers restore --live --rw", fresh: true,
		processes: []string{"containerd", "shim", "criu", "runc", "ctr"}, events: []string{"bundle", "state", "shim", "runc", "criu"},
		fills: []string{"containerd-root", "run"},
		words: func(r *round) []string {
			return []string{"ctr", "containers", "restore", "--live", "--rw", r.id, stockImage}
		},
		judge: func(ctx context.Context, r *round) (verdict, error) {
			state, err := r.look(ctx, r.host, r.id, "")
			return judgeStock(r.seen(state), true), err
		},
		// Its specification names the cgroup of the container that it was taken of.
		prepare: func(ctx context.Context, r *round) error {
			if r.world.life == "" {
				return nil
			}
			return r.world.remove(ctx, r.host, subject)
		},
		ready: removeRestored, clean: removeRestored,
	},
	besideRestore(),
}

func operationNames() (names []string) {
	for _, o := range operations {
		names = append(names, o.name)
	}
	return names
}

// removeStock removes the round's checkpoint in containerd, which may not be there.
func removeStock(ctx context.Context, r *round) error {
	r.host.Ctr(ctx, "images", "rm", "--sync", "chaos.test/"+r.id+":1")
	return nil
}

// startSubject has the container run, also after a round has stopped or paused it.
func startSubject(ctx context.Context, r *round) error {
	if r.world.life != "" && r.result.Command != "" { // after the fault
		if _, status, err := r.host.Task(ctx, subject); err != nil {
			return err
		} else if status == "PAUSED" {
			if resumed := r.host.Ctr(ctx, "tasks", "resume", subject); resumed.Code != exitOK {
				r.violate("the container is paused, and cannot be resumed: %v", resumed.Err())
			}
			return nil
		} else if status == "RUNNING" {
			return nil
		}
		if err := r.world.remove(ctx, r.host, subject); err != nil {
			return err
		}
	}
	return r.world.start(ctx, r.op.engine)
}

// checkpoint takes a snapshot of the container that runs.
func checkpoint(name, engine string, ending, push bool) *operation {
	o := &operation{name: name, engine: engine, about: "cryo checkpoint", processes: dumpers, events: dumpSteps, fills: everywhere, stores: true, prepare: startSubject}
	if push {
		o.processes, o.about = append([]string{"registry"}, dumpers...), o.about+" --push"
	}
	if engine != "" {
		o.processes, o.events, o.about = append([]string{"keeper"}, o.processes...), append([]string{"keeper"}, o.events...), o.about+" of a container with a GPU"
	}
	if ending {
		o.events = append([]string{"end"}, o.events...)
	} else {
		o.about += " --leave-running"
	}
	o.words = func(r *round) []string {
		words := []string{"cryo", "checkpoint", subject, r.ref}
		if push {
			words = append(words, "--push", "--plain-http")
		}
		if !ending {
			words = append(words, "--leave-running")
		}
		return words
	}
	o.judge = func(ctx context.Context, r *round) (verdict, error) {
		state, err := r.look(ctx, r.host, subject, r.world.life)
		if err != nil {
			return verdict{}, err
		}
		s := r.seen(state)
		if s.listed, s.whole, err = r.stored(ctx, r.host, r.ref); err != nil {
			return verdict{}, err
		}
		if push {
			if s.remote, s.remoteWhole, err = r.pushed(ctx, r.ref); err != nil {
				return verdict{}, err
			}
		}
		return judgeCheckpoint(s, ending, push), nil
	}
	// A container that was ended is restored, which shows what the snapshot is worth.
	o.ready = func(ctx context.Context, r *round) error {
		_, status, err := r.host.Task(ctx, subject)
		if err != nil || status == "RUNNING" {
			return err
		}
		life := r.world.life
		if r.host.Cryo(ctx, "verify", "--allow", "all", r.ref).Code != exitOK {
			return startSubject(ctx, r)
		}
		if err := r.world.remove(ctx, r.host, subject); err != nil {
			return err
		}
		if restored := r.host.Cryo(ctx, slices.Concat([]string{"restore", r.ref, "--name", subject}, deviceOf(engine))...); restored.Code != exitOK {
			r.violate("the snapshot cannot be restored: %v", restored.Err())
			return nil
		}
		state, err := r.look(ctx, r.host, subject, life)
		if err != nil {
			return err
		}
		if state != runs {
			r.violate("the restored container is %s", state)
			return nil
		}
		return r.world.met(ctx, life)
	}
	o.clean = func(ctx context.Context, r *round) error {
		r.host.Cryo(ctx, "rm", r.ref) // it may not be there
		if !ending {
			return nil
		}
		return r.world.remove(ctx, r.host, subject)
	}
	return o
}

// arrivalTime is how long the memory of a container that runs may be on its way.
const arrivalTime = time.Minute

// restore makes a container of the snapshot.
func restore(name, engine, about string, second bool, flags ...string) *operation {
	o := &operation{name: name, engine: engine, about: about, second: second, fresh: true, processes: restorers, events: startSteps, flips: []string{"store"}, fills: everywhere, stores: true}
	if second {
		o.processes, o.events = append([]string{"registry"}, restorers...), append([]string{"partial", "blob", "tag"}, startSteps...)
		o.flips = []string{"registry-data"}
		if engine == "" {
			o.events = append(o.events, "program")
		}
	}
	if engine != "" {
		o.processes, o.events = append([]string{"keeper"}, o.processes...), append([]string{"keeper"}, o.events...)
	}
	o.words = func(r *round) []string {
		return slices.Concat([]string{"cryo", "restore", r.golden(), "--plain-http", "--name", r.id}, deviceOf(engine), flags)
	}
	o.judge = func(ctx context.Context, r *round) (verdict, error) {
		var s seen
		for deadline := time.Now().Add(arrivalTime); ; time.Sleep(time.Second) {
			state, err := r.look(ctx, r.host, r.id, "")
			if err != nil {
				return verdict{}, err
			}
			s = r.seen(state)
			s.coming = second && !slices.Contains(flags, "--wait")
			if s.listed, s.whole, err = r.stored(ctx, r.host, r.golden()); err != nil {
				return verdict{}, err
			}
			if coming := second && s.code == exitOK && s.state == runs && !s.whole; !coming || time.Now().After(deadline) {
				break
			}
		}
		v := judgeRestore(s)
		switch {
		case !second && !s.whole:
			v.violate("a restore has damaged the snapshot")
		case s.code == exitOK && !s.whole && (s.state == runs || s.harmed == "host") && !(s.coming && r.hit):
			v.violate("done, and the snapshot is not in the store")
		}
		return v, nil
	}
	o.ready = func(ctx context.Context, r *round) error {
		if err := removeRestored(ctx, r); err != nil || !second || r.choice.Pick%2 == 0 {
			return err
		}
		return removeGolden(ctx, r) // else what has come is used
	}
	o.clean = func(ctx context.Context, r *round) error {
		err := removeRestored(ctx, r)
		if err == nil && second {
			err = removeGolden(ctx, r)
		}
		return err
	}
	return o
}

// gpuDevice is the GPU that containers get.
const gpuDevice = "nvidia.com/gpu=0"

func deviceOf(engine string) []string {
	if engine == "" {
		return nil
	}
	return []string{"--device", gpuDevice}
}

// prewarm gets the snapshot ready.
func prewarm(name, engine, about string, flags ...string) *operation {
	o := &operation{name: name, engine: engine, about: about, second: true, processes: []string{"containerd", "registry", "cryo"},
		events: []string{"work", "partial", "blob", "tag"}, flips: []string{"registry-data"}, fills: everywhere, stores: true, judge: judgePrewarm}
	if engine != "" {
		o.processes, o.events = append([]string{"keeper"}, o.processes...), append([]string{"keeper"}, o.events...)
	}
	o.words = func(r *round) []string {
		return slices.Concat([]string{"cryo", "prewarm"}, flags, []string{r.golden(), "--plain-http"})
	}
	o.clean = func(ctx context.Context, r *round) error {
		r.host.Cryo(ctx, "prewarm", "rm", r.golden()) // it may not be there
		return removeGolden(ctx, r)
	}
	return o
}

// removeRestored removes the round's container, if there is one.
func removeRestored(ctx context.Context, r *round) error {
	list := r.host.Ctr(ctx, "containers", "ls", "--quiet")
	if err := list.Err(); err != nil {
		return err
	}
	for _, id := range strings.Fields(list.Stdout) {
		if id == r.id {
			if err := r.world.remove(ctx, r.host, id); err != nil {
				r.violate("a container cannot be removed: %v", err)
			}
		}
	}
	return nil
}

func pullGolden(ctx context.Context, r *round) error {
	return r.host.Cryo(ctx, "pull", r.golden(), "--plain-http").Err()
}

func removeGolden(ctx context.Context, r *round) error {
	removed := r.host.Cryo(ctx, "rm", r.golden())
	if removed.Code == exitNotFound {
		return nil
	}
	return removed.Err()
}

func judgeLocal(ctx context.Context, r *round, removes bool) (v verdict, err error) {
	s := r.seen("")
	s.listed, s.whole, err = r.stored(ctx, r.host, r.golden())
	return judgeCopy(s, removes, false), err
}

func judgePush(ctx context.Context, r *round) (v verdict, err error) {
	s := r.seen("")
	s.remote, s.remoteWhole, err = r.pushed(ctx, r.ref)
	return judgeCopy(s, false, true), err
}

// judgePrewarm also restores what is said to be ready.
func judgePrewarm(ctx context.Context, r *round) (verdict, error) {
	v, err := judgeLocal(ctx, r, false)
	if err != nil {
		return v, err
	}
	list := r.host.Cryo(ctx, "prewarm", "ls", "--json")
	if err := list.Err(); err != nil {
		return v, err
	}
	ready := strings.Contains(list.Stdout, r.golden())
	if !ready {
		if r.result.Code == exitOK {
			v.violate("done, and cryo prewarm ls does not list it")
		}
		return v, nil
	}
	restored := r.host.Cryo(ctx, slices.Concat([]string{"restore", r.golden(), "--name", r.id, "--plain-http"}, deviceOf(r.op.engine))...)
	if restored.Code != exitOK {
		v.violate("what is prewarmed cannot be restored: %v", restored.Err())
		return v, nil
	}
	state, err := r.look(ctx, r.host, r.id, "")
	if err != nil {
		return v, err
	}
	if state != runs {
		v.violate("the container restored from what is prewarmed is %s", state)
	}
	return v, removeRestored(ctx, r)
}
