package main

import (
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	table := newTable()
	table.add(choice{Fault: "kill", Target: "shim"}, true, gone, time.Second)
	table.add(choice{Fault: "kill", Target: "shim"}, true, violation, time.Second)
	table.add(choice{Fault: "kill", Target: "criu"}, false, ranOn, 4*time.Second)
	table.add(choice{Fault: "stop", Target: "cryo"}, true, refused, 2*time.Second)
	table.add(choice{Fault: "power", Target: "after", Operation: "pull"}, true, ranOn, 2*time.Second)
	got := table.markdown("Seed 1")
	want := `Seed 1: 5 rounds, 2.0 s each on average.

| fault | target | rounds | hit | ran on | gone, with reason | refused | violation |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| kill | criu | 1 | 0 | 1 | 0 | 0 | 0 |
| kill | shim | 2 | 2 | 0 | 1 | 0 | 1 |
| power | after pull | 1 | 1 | 1 | 0 | 0 | 0 |
| stop | cryo | 1 | 1 | 0 | 0 | 1 | 0 |
| all |  | 5 | 4 | 2 | 1 | 1 | 1 |
`
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
