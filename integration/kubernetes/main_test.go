// Package kubernetes holds the tests under Kubernetes' own components, see package cluster: "make kubernetes-test" runs them.
//
// All share one cluster with the nodes A and B, whose pods live in namespace default. A test names its pods with [name], makes them with [apply] or
// [run], which remove them afterwards, and asks what runs in them with [ask]. [must] fails the test unless a command succeeded.
package kubernetes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/integration/worker"
)

// shared is the cluster that all tests run on.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	lab.Main()
	flag.Parse()
	if testing.Short() {
		fmt.Println("tests under Kubernetes need more than -short: skipped")
		os.Exit(0)
	}
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	os.Exit(runTests(m))
}

// runTests is TestMain with deferred calls.
func runTests(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	var err error
	shared, err = cluster.Start(ctx, cluster.Options{})
	var missing *lab.MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		fmt.Println("tests under Kubernetes skipped:", err)
		return 0
	}
	if err != nil {
		fmt.Println("start cluster:", err)
		return 1
	}
	fmt.Printf("the cluster started in %.1fs\n", time.Since(begin).Seconds())
	code := worker.Run(m)
	for _, leak := range shared.Leaks() {
		fmt.Println("left behind:", leak)
		code = 1
	}
	if err := shared.Close(); err != nil {
		fmt.Println("close cluster:", err)
		return 1
	}
	return code
}
