package main

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// identity is what a process is apart from its memory and files. What it was at the start must not change.
type identity struct{ first map[string]any }

func startIdentity(flags *flag.FlagSet, args []string) (workload, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	unix.Umask(0o027)
	first, err := describe()
	return identity{first}, err
}

func (i identity) Check() (map[string]any, error) {
	now, err := describe()
	if err != nil {
		return nil, err
	}
	for name, value := range i.first {
		if fmt.Sprint(now[name]) != fmt.Sprint(value) {
			return now, fmt.Errorf("%s was %v and is %v", name, value, now[name])
		}
	}
	return now, nil
}

// statusFields are lines of /proc/self/status that say what the process may do, see proc_pid_status(5).
var statusFields = map[string]bool{
	"Uid": true, "Gid": true, "Groups": true, "Umask": true, "NoNewPrivs": true, "Seccomp": true, "Seccomp_filters": true,
	"CapInh": true, "CapPrm": true, "CapEff": true, "CapBnd": true, "CapAmb": true, "NSpid": true,
}

func describe() (map[string]any, error) {
	state := map[string]any{}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(line, ":"); statusFields[name] {
			state[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	for _, path := range []string{"limits", "oom_score_adj", "personality"} {
		content, err := os.ReadFile("/proc/self/" + path)
		if err != nil {
			continue // not every kernel has all
		}
		state[path] = string(content)
	}
	// Not /proc/self/timerslack_ns, which only the first thread may read.
	if state["timerslack"], err = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil {
		return nil, err
	}
	if state["hostname"], err = os.Hostname(); err != nil {
		return nil, err
	}
	if state["directory"], err = os.Getwd(); err != nil {
		return nil, err
	}
	environment := os.Environ()
	sort.Strings(environment)
	state["environment"] = environment
	// A filtered system call fails as the profile says; without a filter it fails for another reason.
	_, _, errno := unix.Syscall(unix.SYS_ACCT, 0, 0, 0)
	state["acct"] = errno.Error()
	return state, nil
}
