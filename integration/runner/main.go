// Runner runs the integration tests in several processes side by side, each with a lab of its own, and hands each process one test after the other.
//
// There are two tiers. A test in a file whose name ends in _all_test.go belongs to the second, which "make test-all" runs; all others are the first,
// which "make test" runs. A test of the first tier that takes more than 5 s by itself fails, or more than a slow machine needs for as much. Tests in a file with _alone_ in its name measure time:
// they run after the others, one at a time. The tests of integration/kubernetes are a tier of their own, and run one at a time, on one cluster.
//
// With a limit of time (--for) runner begins no test after that time. Its last lines name the tests that it has not run.
//
//	go run ./integration/runner --tier first
//	go run ./integration/runner --run '^TestGPU' --jobs 1 --verbose
//	go run ./integration/runner --tier second --for 40m --shuffle 7
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A test of the first tier takes no longer than this by itself, on a machine that starts a process in usualStart.
const limit = 5 * time.Second

// usualStart is how long the start and the end of a small process take on a machine of usual speed, which is most of what the tests do. Machines are as slow as twice that: a
// virtual machine whose host does its page tables, for one.
const usualStart = 1200 * time.Microsecond

// A test of the first tier that took too long is run by itself up to so many times: the machine may have been busy.
const measures = 3

// Of tests that fail, this many are run once more where that was asked for: more are no accident.
const retries = 2

var options struct {
	tier    string
	jobs    int
	run     *regexp.Regexp
	skip    *regexp.Regexp
	retry   bool
	verbose bool
	timeout time.Duration
	limit   time.Duration
	shuffle int64
}

func main() {
	flag.StringVar(&options.tier, "tier", "all", "which tests: first, second, all (of both), or kubernetes")
	flag.IntVar(&options.jobs, "jobs", runtime.NumCPU()+1, "how many processes run tests side by side")
	run := flag.String("run", "", "only tests whose names match this regular expression")
	skip := flag.String("skip", "", "no tests whose names match this regular expression")
	flag.BoolVar(&options.retry, "retry", false, fmt.Sprintf("run at most %d tests that failed once more, by themselves", retries))
	flag.BoolVar(&options.verbose, "verbose", false, "print the output of tests that pass, too")
	flag.DurationVar(&options.timeout, "timeout", 10*time.Minute, "end a test that takes longer, on a machine of usual speed")
	flag.DurationVar(&options.limit, "for", 0, "begin no test after so long, and name those that were not run; 0: run all")
	flag.Int64Var(&options.shuffle, "shuffle", 0, "a number from which a random order of the tests is made; 0: the order of their files")
	flag.Parse()
	var err error
	if options.run, err = regexp.Compile(*run); err == nil && *skip != "" {
		options.skip, err = regexp.Compile(*skip)
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = all(ctx)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration tests:", err)
		os.Exit(1)
	}
}

// all builds the tests, runs those that the options name and prints what became of them.
func all(ctx context.Context) error {
	begun := time.Now()
	dir := "integration"
	if options.tier == kubernetes {
		dir, options.jobs = filepath.Join(dir, kubernetes), 1
	}
	names, alone, err := tests(dir)
	if err != nil {
		return err
	}
	built, err := os.MkdirTemp("", "cryo-tests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	program := filepath.Join(built, "integration.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, "./"+dir)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the tests: %w", err)
	}
	options.timeout = times(options.timeout, slowness(ctx))
	r := &runner{program: program, dir: dir, total: len(names) + len(alone)}
	if options.limit > 0 {
		r.end = begun.Add(options.limit)
	}
	if options.shuffle != 0 {
		chance := rand.New(rand.NewPCG(uint64(options.shuffle), 0))
		chance.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	}
	r.side(ctx, options.jobs, names)
	r.side(ctx, 1, alone)
	r.end = time.Time{}
	r.again(ctx)
	return errors.Join(ctx.Err(), r.summary(time.Since(begun)))
}

// tests lists the names of the tests in a directory that the options choose, in the order of their files: those that run side by side, and those that do not.
func tests(dir string) (names, alone []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		second := strings.HasSuffix(file, "_all_test.go")
		if options.tier == "first" && second || options.tier == "second" && !second {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		list := &names
		if strings.Contains(filepath.Base(file), "_alone_") {
			list = &alone
		}
		for _, found := range function.FindAllSubmatch(content, -1) {
			name := string(found[1])
			if name != "TestMain" && options.run.MatchString(name) && (options.skip == nil || !options.skip.MatchString(name)) {
				*list = append(*list, name)
			}
		}
	}
	if len(names)+len(alone) == 0 {
		return nil, nil, errors.New("no test has such a name; tests are in " + dir)
	}
	return names, alone, nil
}

// kubernetes is the tier, and the folder, of the tests under Kubernetes.
const kubernetes = "kubernetes"

var function = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(t \*testing\.T\)`)

// runner collects what became of tests.
type runner struct {
	program string
	dir     string // of the tests' source, where they run
	total   int
	end     time.Time // no test begins later; zero: no such time

	mu      sync.Mutex
	done    []outcome
	retried []string
	unrun   []string // the tests that late has noted
	left    []string // what processes of tests have left behind
}

// outcome is what became of one test.
type outcome struct {
	name    string
	failed  bool
	skipped []string // names of the test, or of parts of it, that were skipped
	parts   int      // how many parts it had
	took    time.Duration
	output  string
}

// side runs tests in so many processes.
func (r *runner) side(ctx context.Context, jobs int, names []string) {
	queue := make(chan string, len(names))
	for _, name := range names {
		queue <- name
	}
	close(queue)
	var workers sync.WaitGroup
	for range min(jobs, len(names)) {
		workers.Go(func() {
			var w *worker
			for name := range queue {
				if ctx.Err() != nil {
					break
				}
				if r.late(name) {
					continue
				}
				var o outcome
				if o, w = r.one(ctx, w, name); ctx.Err() == nil {
					r.report(o)
				}
			}
			if w == nil {
				return
			}
			if err := w.close(); err != nil && ctx.Err() == nil {
				r.leaves(err)
			}
		})
	}
	workers.Wait()
}

// late reports whether the time is over, and then notes that the test was not run.
func (r *runner) late(name string) bool {
	if r.end.IsZero() || time.Now().Before(r.end) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unrun = append(r.unrun, name)
	return true
}

// one runs a test in a process, which it starts if w is nil, and returns the process, or nil if it has ended.
func (r *runner) one(ctx context.Context, w *worker, name string) (outcome, *worker) {
	if w == nil {
		var err error
		if w, err = startWorker(ctx, r.program, r.dir); err != nil {
			return outcome{name: name, failed: true, output: err.Error()}, nil
		}
	}
	begun := time.Now()
	code, err := w.run(name)
	o := outcome{name: name, failed: code != 0 || err != nil, took: time.Since(begun)}
	if err != nil {
		err = errors.Join(err, w.close())
		o.output = fmt.Sprintf("%s: the process of the tests has ended: %v\n", name, err)
	} else {
		o.output = w.output()
	}
	for _, line := range result.FindAllStringSubmatch(o.output, -1) {
		if line[2] != name {
			o.parts++
		} else if seconds, err := strconv.ParseFloat(line[3], 64); err == nil {
			o.took = time.Duration(seconds * float64(time.Second)) // without the start of its lab
		}
		if line[1] == "SKIP" {
			o.skipped = append(o.skipped, line[2])
		}
	}
	if !o.failed && !strings.Contains(o.output, "--- PASS: "+name+" ") && !strings.Contains(o.output, "--- SKIP: "+name+" ") {
		o.failed, o.output = true, o.output+name+": no such test has run\n"
	}
	if err != nil {
		return o, nil
	}
	return o, w
}

var result = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)

func (r *runner) report(o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, o)
	word := "ok  "
	switch {
	case o.failed:
		word = "FAIL"
	case slices.Contains(o.skipped, o.name):
		word = "skip"
	}
	if o.failed || options.verbose || word == "skip" {
		fmt.Print(o.output)
	}
	fmt.Printf("%s %s (%.1fs) %d/%d\n", word, o.name, o.took.Seconds(), len(r.done), r.total)
}

// leaves takes note of what the tests of a process have left behind, which fails them all.
func (r *runner) leaves(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = append(r.left, err.Error())
	fmt.Println("FAIL tests have left something behind:", err)
}

// again runs by themselves tests that failed, if that was asked for, and those of the first tier that took too long beside others.
func (r *runner) again(ctx context.Context) {
	var failed, slow []string
	for _, o := range r.done {
		if o.failed {
			failed = append(failed, o.name)
		}
	}
	if options.retry && len(failed) > 0 && len(failed) <= retries {
		r.replace(ctx, failed)
		r.retried = failed
	}
	if options.tier != "first" {
		return
	}
	limit := times(limit, slowness(ctx))
	for _, o := range r.done {
		if !o.failed && o.took > limit {
			slow = append(slow, o.name)
		}
	}
	if len(slow) > 0 {
		for range measures {
			fmt.Println("took more than", limit, "and are run by themselves:", strings.Join(slow, " "))
			r.replace(ctx, slow)
			slow = slices.DeleteFunc(slow, func(name string) bool {
				return !slices.ContainsFunc(r.done, func(o outcome) bool { return o.name == name && o.took > limit })
			})
			if len(slow) == 0 {
				break
			}
		}
		for i := range r.done {
			if o := &r.done[i]; slices.Contains(slow, o.name) && o.took > limit {
				o.failed = true
				fmt.Printf("FAIL %s takes %.1f s by itself. A test of the first tier takes at most %s: move it to a file *_all_test.go, or make it faster\n",
					o.name, o.took.Seconds(), limit)
			}
		}
	}
}

// slowness returns how many times longer this machine needs to start a process than one of usual speed, at least 1. Nothing else is wanted of the machine at the moment.
func slowness(ctx context.Context) float64 {
	const processes = 200
	begun := time.Now()
	for range processes {
		_ = exec.CommandContext(ctx, "true").Run() // where there is none, it fails in no time, and the machine is a usual one
	}
	start := time.Since(begun) / processes
	fmt.Printf("this machine starts a process in %s\n", start.Round(10*time.Microsecond))
	return max(1, float64(start)/float64(usualStart))
}

// times returns a duration so many times longer.
func times(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d) * factor).Round(100 * time.Millisecond)
}

// replace runs tests once more, one after the other, and forgets what became of them before.
func (r *runner) replace(ctx context.Context, names []string) {
	r.done = slices.DeleteFunc(r.done, func(o outcome) bool { return slices.Contains(names, o.name) })
	r.side(ctx, 1, names)
}

// summary prints the last lines, and returns an error if a test has failed.
func (r *runner) summary(took time.Duration) error {
	slices.SortFunc(r.done, func(a, b outcome) int { return int(b.took - a.took) })
	var failed, skipped []string
	var parts int
	var sum time.Duration
	for _, o := range r.done {
		parts += o.parts
		sum += o.took
		skipped = append(skipped, o.skipped...)
		if o.failed {
			failed = append(failed, o.name)
		}
	}
	fmt.Println("the slowest:")
	for _, o := range r.done[:min(5, len(r.done))] {
		fmt.Printf("  %5.1fs %s\n", o.took.Seconds(), o.name)
	}
	fmt.Printf("%d tests with %d parts in %.0fs, %.0fs one after the other, %d failed, %d skipped\n", len(r.done), parts, took.Seconds(), sum.Seconds(), len(failed), len(skipped))
	if len(skipped) > 0 {
		fmt.Println("skipped:", strings.Join(skipped, " "))
	}
	if len(r.retried) > 0 {
		fmt.Println("failed at first, and were run once more:", strings.Join(r.retried, " "))
	}
	if len(r.unrun) > 0 {
		fmt.Printf("NOT RUN, for want of time, are %d tests: %s\n", len(r.unrun), strings.Join(r.unrun, " "))
	}
	var err error
	if len(failed) > 0 {
		err = errors.New("failed: " + strings.Join(failed, " "))
	}
	if len(r.done) == 0 {
		err = errors.New("no test was run")
	}
	if len(r.left) > 0 {
		err = errors.Join(err, fmt.Errorf("tests of %d processes have left something behind", len(r.left)))
	}
	return err
}

// worker is a process of the test program that has a lab and waits for names of tests.
type worker struct {
	command *exec.Cmd
	names   *os.File // a line each
	codes   *os.File // a line for each name: the exit status of its test
	written *os.File // what the process prints: a file, so that all of a test's output is there when its status is
}

func startWorker(ctx context.Context, program, dir string) (*worker, error) {
	namesIn, names, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	codes, codesOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	written, err := os.CreateTemp(filepath.Dir(program), "output-")
	if err != nil {
		return nil, err
	}
	w := &worker{names: names, codes: codes, written: written}
	w.command = exec.CommandContext(ctx, program, "-test.v", "-test.timeout", options.timeout.String(), "-worker")
	w.command.Dir = dir
	w.command.Cancel = func() error { return w.command.Process.Signal(os.Interrupt) }
	w.command.WaitDelay = time.Minute
	w.command.Stdout, w.command.Stderr = written, written
	w.command.ExtraFiles = []*os.File{namesIn, codesOut}
	err = w.command.Start()
	if err := errors.Join(err, namesIn.Close(), codesOut.Close()); err != nil {
		return nil, err
	}
	return w, nil
}

// run has the process run a test.
func (w *worker) run(name string) (code int, err error) {
	if _, err := fmt.Fprintln(w.names, name); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(w.codes, &code)
	return code, err
}

// output returns what the process has printed, and empties it.
func (w *worker) output() string {
	content, err := os.ReadFile(w.written.Name())
	if err == nil {
		_, err = w.written.Seek(0, io.SeekStart)
	}
	if err = errors.Join(err, w.written.Truncate(0)); err != nil {
		return err.Error()
	}
	return string(content)
}

// close waits until the process has removed its lab, and returns an error if it left something behind.
func (w *worker) close() error {
	err := errors.Join(w.names.Close(), w.command.Wait())
	if err != nil {
		err = fmt.Errorf("%w: %s", err, w.output())
	}
	return errors.Join(err, w.codes.Close(), w.written.Close())
}
