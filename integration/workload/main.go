// Workload is the program inside the integration tests' containers: one subcommand for each kind of state a checkpoint
// has to carry. All of them count, ten times a second, and answer on a unix socket with their count and with whether
// their state is what it should be.
//
//	workload KIND [flags]        runs; "workload" alone lists the kinds
//	workload ask [COMMAND ...]   asks the one that runs in this container, see ask.go; exits 1 where state is damaged
//
// SIGTERM ends it with status 0.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"sync/atomic"
	"syscall"
	"time"
)

// workload is state to be carried over.
type workload interface {
	// Check says what the state is. An error says that it is not what it should be.
	Check() (map[string]any, error)
}

// commander is a workload that takes further commands from "workload ask".
type commander interface {
	Do(command string, args []string) (map[string]any, error)
}

// kind makes a workload from its flags.
type kind struct {
	about string
	start func(flags *flag.FlagSet, args []string) (workload, error)
}

// kinds are the subcommands.
var kinds = map[string]kind{
	"bench":      {"has much memory quickly, and a clock that notices standing still", startBench},
	"churn":      {"holds memory and changes it in all ways", startChurn},
	"clones":     {"has random state, clocks and a timer", startClones},
	"count":      {"counts on stdout and holds memory", startCount},
	"descriptor": {"holds a descriptor of a kind of its own", startDescriptors},
	"files":      {"has files open: read, deleted, renamed, growing, locked", startFiles},
	"ipc":        {"has System V objects of all kinds", startSystemV},
	"identity":   {"knows its ids, capabilities, limits, environment", startIdentity},
	"keyring":    {"knows its session keyring", startKeyring},
	"oom":        {"allocates memory until it is killed", startOOM},
	"overlay":    {"replaces what the image has, also while it is open", startOverlay},
	"pipes":      {"has data in pipes and sockets", startPipes},
	"region":     {"is count whose memory changes in runs of pages", startRegion},
	"restorable": {"holds what CRIU dumps and cannot restore", startRestorable},
	"ring":       {"sends numbered messages to the next member of a ring", startRing},
	"rootfs":     {"changes the root file system in all ways", startRootFS},
	"shm":        {"has shared memory", startSharedMemory},
	"tcp":        {"listens on TCP and has a connection", startTCP},
	"terminal":   {"echoes the lines of its terminal or standard input", startTerminal},
	"tmpfs":      {"has made all kinds of files in a directory", startTmpfs},
	"tree":       {"has many processes and threads", startTree},
	"undumpable": {"holds what CRIU refuses", startUndumpable},
	"unixsock":   {"has unix sockets", startUnixSockets},
	"writer":     {"writes to a little of its memory all the time", startWriter},
	"volumes":    {"has written files in mounted directories", startVolumes},
}

// count goes up ten times a second.
var count atomic.Int64

func main() {
	if len(os.Args) < 2 {
		usage()
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func usage() {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(os.Stderr, "workload %-10s %s\n", name, kinds[name].about)
	}
}

func run(name string, args []string) error {
	switch name {
	case "ask":
		return ask(args)
	case churnerName:
		return churner(args)
	case sparseName:
		return sparseParent(args)
	case childName:
		return child(args)
	}
	k, ok := kinds[name]
	if !ok {
		usage()
		return fmt.Errorf("no kind %q", name)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	quiet := flags.Bool("quiet", false, "do not print the count")
	w, err := k.start(flags, args)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := serve(name, w); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	for {
		select {
		case <-end:
			return nil
		case <-tick.C:
			if n := count.Add(1); !*quiet {
				fmt.Println("count", n)
			}
		}
	}
}
