package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"
)

// table counts outcomes.
type table struct {
	mu   sync.Mutex
	rows map[[2]string]*row // guarded by mu; by fault and target
	time time.Duration      // guarded by mu; of all rounds
	all  int                // guarded by mu
}

// row counts those of one kind.
type row struct {
	rounds, hits int
	outcomes     map[string]int
}

func newTable() *table { return &table{rows: map[[2]string]*row{}} }

func (t *table) add(c choice, hit bool, outcome string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := [2]string{c.Fault, c.Target}
	if c.Target == "after" { // by what was acknowledged
		key[1] += " " + c.Operation
	}
	if t.rows[key] == nil {
		t.rows[key] = &row{outcomes: map[string]int{}}
	}
	t.rows[key].rounds++
	if hit {
		t.rows[key].hits++
	}
	t.rows[key].outcomes[outcome]++
	t.time += took
	t.all++
}

// markdown is the report.
func (t *table) markdown(about string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys [][2]string
	for key := range t.rows {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i][0]+" "+keys[i][1] < keys[j][0]+" "+keys[j][1] })
	var b strings.Builder
	mean := time.Duration(0)
	if t.all > 0 {
		mean = t.time / time.Duration(t.all)
	}
	fmt.Fprintf(&b, "%s: %d rounds, %.1f s each on average.\n\n", about, t.all, mean.Seconds())
	b.WriteString("| fault | target | rounds | hit | ran on | gone, with reason | refused | violation |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	total := row{outcomes: map[string]int{}}
	line := func(name, target string, r *row) {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d |\n", name, target, r.rounds, r.hits,
			r.outcomes[ranOn], r.outcomes[gone], r.outcomes[refused], r.outcomes[violation])
	}
	for _, key := range keys {
		r := t.rows[key]
		line(key[0], key[1], r)
		total.rounds += r.rounds
		total.hits += r.hits
		for outcome, n := range r.outcomes {
			total.outcomes[outcome] += n
		}
	}
	line("all", "", &total)
	return b.String()
}
