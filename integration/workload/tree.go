package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// childName is the hidden subcommand of a tree's processes.
const childName = "child"

// tree is a tree of processes, each with threads, that answer through pipes to their parents.
type tree struct {
	children []*branch
	zombie   int // pid of a child that ended and was not waited for
}

// branch is one child: it knows its token, its pid and how often it was asked.
type branch struct {
	mu     sync.Mutex
	token  string
	pid    int
	asked  int // guarded by mu
	stdin  io.Writer
	stdout *bufio.Reader
}

func startTree(flags *flag.FlagSet, args []string) (workload, error) {
	width := flags.Int("width", 4, "children of each process")
	depth := flags.Int("depth", 2, "levels of children")
	threads := flags.Int("threads", 4, "threads of each process")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	t := &tree{}
	var err error
	if t.children, err = grow("0", *width, *depth, *threads); err != nil {
		return nil, err
	}
	dead := exec.Command("/bin/busybox", "true")
	if err := dead.Start(); err != nil {
		return nil, fmt.Errorf("start zombie: %w", err)
	}
	t.zombie = dead.Process.Pid
	return t, nil
}

// grow starts children; every second one is the leader of a session of its own.
func grow(token string, width, depth, threads int) ([]*branch, error) {
	if depth == 0 {
		return nil, nil
	}
	var all []*branch
	for i := range width {
		b := &branch{token: token + "." + strconv.Itoa(i)}
		c := exec.Command("/proc/self/exe", childName, b.token, strconv.Itoa(width), strconv.Itoa(depth-1), strconv.Itoa(threads))
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: i%2 == 1}
		in, err := c.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := c.Start(); err != nil {
			return nil, fmt.Errorf("start child: %w", err)
		}
		b.pid, b.stdin, b.stdout = c.Process.Pid, in, bufio.NewReader(out)
		all = append(all, b)
	}
	return all, nil
}

// ask counts the processes and threads below a branch, itself included.
func (b *branch) ask() (processes, threads int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if _, err := fmt.Fprintln(b.stdin, "count"); err != nil {
		return 0, 0, fmt.Errorf("ask %s: %w", b.token, err)
	}
	line, err := b.stdout.ReadString('\n')
	if err != nil {
		return 0, 0, fmt.Errorf("ask %s: %w", b.token, err)
	}
	var token string
	var pid, asked int
	if _, err := fmt.Sscan(line, &token, &pid, &asked, &processes, &threads); err != nil {
		return 0, 0, fmt.Errorf("ask %s: %q: %w", b.token, strings.TrimSpace(line), err)
	}
	if token != b.token || pid != b.pid || asked != b.asked {
		return 0, 0, fmt.Errorf("%s with pid %d, asked %d times, answered %q", b.token, b.pid, b.asked, strings.TrimSpace(line))
	}
	return processes, threads, nil
}

func (t *tree) Check() (map[string]any, error) {
	processes, threads, err := total(t.children)
	if err != nil {
		return nil, err
	}
	state := map[string]any{"processes": processes + 1, "threads": threads}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.zombie))
	if err != nil || !strings.Contains(string(stat), ") Z ") {
		return state, errors.New("the zombie is gone")
	}
	return state, nil
}

func total(branches []*branch) (processes, threads int, err error) {
	for _, b := range branches {
		p, t, err := b.ask()
		if err != nil {
			return 0, 0, err
		}
		processes, threads = processes+p, threads+t
	}
	return processes, threads, nil
}

// child is a process of the tree: its arguments are token, width, depth and threads.
func child(args []string) error {
	if len(args) != 4 {
		return errors.New("child: wants token, width, depth and threads")
	}
	var numbers [3]int
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.Atoi(args[i+1]); err != nil {
			return err
		}
	}
	children, err := grow(args[0], numbers[0], numbers[1], numbers[2])
	if err != nil {
		return err
	}
	alive := newThreads(numbers[2])
	lines := bufio.NewScanner(os.Stdin)
	for asked := 1; lines.Scan(); asked++ {
		p, t, err := total(children)
		if err != nil {
			return err
		}
		n, err := alive.count()
		if err != nil {
			return err
		}
		fmt.Println(args[0], os.Getpid(), asked, p+1, t+n)
	}
	return lines.Err()
}

// threads are threads of the system, each with a register of its own that only it changes.
type threads []*thread

type thread struct {
	ask    chan struct{}
	answer chan int64
	tid    int
	turns  atomic.Int64
}

func newThreads(n int) threads {
	var all threads
	for range n {
		t := &thread{ask: make(chan struct{}), answer: make(chan int64)}
		all = append(all, t)
		go func() {
			runtime.LockOSThread()
			t.tid = syscall.Gettid()
			for range t.ask {
				if syscall.Gettid() != t.tid {
					t.answer <- -1
					continue
				}
				t.answer <- t.turns.Add(1)
			}
		}()
	}
	return all
}

// count asks each thread whether it still has its id and its register.
func (all threads) count() (int, error) {
	for i, t := range all {
		before := t.turns.Load()
		t.ask <- struct{}{}
		if got := <-t.answer; got != before+1 {
			return 0, fmt.Errorf("thread %d answered %d after %d", i, got, before)
		}
	}
	return len(all), nil
}
