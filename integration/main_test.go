// Package integration holds the end to end tests: real containerds, runc, CRIU and registries, see package lab.
//
// A test takes the two shared hosts with [pair], or one of its own with [newHost] where it breaks things; it names its
// containers with [name], and starts them with [start], which removes them afterwards. [must] fails the test unless a command succeeded.
//
// A file whose name ends in _all_test.go has tests of the second tier, which "make test-all" runs. All others are the first tier, which "make test" runs,
// and take at most 5 s each. Package runner says how they are run.
package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/integration/worker"
)

// shared is what most tests run on.
var shared struct {
	lab      *lab.Lab
	a, b     *lab.Host
	registry *lab.Registry // plain HTTP, no authentication
	image    string        // the base image's reference in the registry
}

func TestMain(m *testing.M) {
	lab.Main()
	flag.Parse()
	if testing.Short() {
		fmt.Println("integration tests need more than -short: skipped")
		os.Exit(0)
	}
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	os.Exit(run(m))
}

// run is TestMain with deferred calls.
func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := open(ctx)
	var missing *lab.MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		fmt.Println("integration tests skipped:", err)
		return 0
	}
	if err != nil {
		fmt.Println("open lab:", err)
		return 1
	}
	code := worker.Run(m)
	for _, leak := range shared.lab.Leaks() {
		fmt.Println("left behind:", leak)
		code = 1
	}
	if err := shared.lab.Close(); err != nil {
		fmt.Println("close lab:", err)
		return 1
	}
	return code
}

// open starts what is shared.
func open(ctx context.Context) (err error) {
	s := &shared
	if s.lab, err = lab.Open(ctx, lab.Options{}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lab.Close())
		}
	}()
	if s.registry, err = s.lab.Registry(ctx, "registry", lab.RegistryOptions{}); err != nil {
		return err
	}
	for name, host := range map[string]**lab.Host{"a": &s.a, "b": &s.b} {
		if *host, err = s.lab.Host(ctx, name, lab.HostOptions{}); err != nil {
			return err
		}
	}
	if err = s.a.Import(ctx); err != nil {
		return err
	}
	s.image, err = s.a.Seed(ctx, s.registry, lab.ImageName)
	return err
}
