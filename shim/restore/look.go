package restore

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

// Looking is a look over this host that is under way: criu and runc take longer to say their versions than all else before a
// container is made, and a snapshot can be fetched meanwhile.
type Looking struct {
	cancel context.CancelFunc
	done   chan struct{}

	criu  string // path
	facts host.Facts
	runc  host.Runc
	locks []string // [host.NFTablesLock], if CRIU has it: most snapshots need it
	err   error    // all five to be read when done is closed
}

// Look begins to look. The caller must call End.
func Look(ctx context.Context, c config.Config) *Looking {
	ctx, cancel := context.WithCancel(ctx)
	l := &Looking{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		var err error
		if l.criu, err = c.FindCRIU(); err != nil { // the rules of fit find that it is missing
			l.criu = cmp.Or(c.CRIU, guard.CRIUName)
		}
		var asking sync.WaitGroup
		asking.Go(func() { l.locks = host.Features(ctx, l.criu, []string{host.NFTablesLock}) })
		l.facts, l.runc, l.err = host.Collect(ctx, host.Options{CRIU: l.criu})
		asking.Wait()
	}()
	return l
}

// Target waits until this host is known as the rules of fit see it, with those of the features that it has. A missing CRIU is for
// them to find.
func (l *Looking) Target(ctx context.Context, features []string) (host.FitTarget, error) {
	<-l.done
	if l.err != nil {
		return host.FitTarget{}, l.err
	}
	t := host.FitTarget{Host: image.Host(l.facts), PathExists: exists, Seccomp: l.runc.Seccomp}
	if t.CRIU != "" {
		others := slices.DeleteFunc(slices.Clone(features), func(name string) bool { return name == host.NFTablesLock })
		t.Features = append(host.Features(ctx, l.criu, others), l.locks...)
	}
	return t, context.Cause(ctx)
}

// End breaks it off.
func (l *Looking) End() {
	l.cancel()
	<-l.done
}
