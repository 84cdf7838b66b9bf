package main

import (
	"bytes"
	"fmt"
	"strings"
)

// times is the table of a checkpoint that leaves the container running beside the same by hand, on the same process in turn.
func (p *report) times(b *bytes.Buffer) {
	steps := []struct{ what, cryo, hand, bare string }{
		{"lock", "live.lock", "hand.lock", "bare.lock"},
		{"driver: device to host", "live.save", "hand.checkpoint", "bare.checkpoint"},
		{"CRIU (by runc; outside of containers by itself)", "live.dump", "hand.dump", "bare.dump"},
		{"files of the container", "live.rootfs", "", ""},
		{"driver: host to device, unlock", "live.load", "hand.restore+hand.unlock", ""},
	}
	for _, r := range p.Results {
		gib, ok := strings.CutPrefix(r.Case, "plain-")
		if !ok || len(r.Times["live.freeze"]) == 0 || len(r.Times["hand.dump"]) == 0 {
			continue
		}
		bare := p.timesOf("bare-" + gib)
		fmt.Fprintf(b, "\n## Freeze, %s GiB of device memory\n\nSeconds; medians of %d rounds, cryo and by hand in turn on one process in one container. "+
			"The last column is another process, outside of containers.\n\n", gib, len(r.Times["hand.dump"]))
		row(b, "step", "cryo", "by hand", "by hand, no container")
		row(b, "---", "---:", "---:", "---:")
		for _, s := range steps {
			row(b, s.what, cell(r.Times, s.cryo), cell(r.Times, s.hand), cell(bare, s.bare))
		}
		hand, _ := sum(r.Times, "hand.lock+hand.checkpoint+hand.dump+hand.restore+hand.unlock")
		freeze, _ := median(r.Times["live.freeze"])
		row(b, "**frozen altogether**", fmt.Sprintf("**%.2f**", freeze), fmt.Sprintf("**%.2f**", hand), "")
		row(b, "**cryo's overhead**", fmt.Sprintf("**%+.1f %%**", 100*(freeze/hand-1)), "", "")
		row(b, "packaging, while it runs on (cryo: segments, compressed and hashed; by hand: tar)", cell(r.Times, "live.pack"), cell(r.Times, "hand.tar"), cell(bare, "bare.tar"))
		row(b, "restore (cryo: snapshot to running; by hand: untar, criu, driver)", cell(r.Times, "restore"), "", cell(bare, "bare.untar+bare.criu restore+bare.restore+bare.unlock"))
	}
}

// timesOf are the times of a case; none if it was not run.
func (p *report) timesOf(name string) map[string][]float64 {
	for _, r := range p.Results {
		if r.Case == name {
			return r.Times
		}
	}
	return nil
}

// moves is the table of all containers that went to the second host.
func (p *report) moves(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## From host to host\n\nSeconds. Device memory is part of memory here: the driver has moved it there.\n\n")
	row(b, "case", "memory", "snapshot", "lock", "save", "CRIU", "frozen until it ended", "packaging", "push", "pull", "restore", "left running: frozen", "of which load")
	row(b, "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
	for _, r := range p.Results {
		if len(r.Times["restore"]) == 0 {
			continue
		}
		t := r.Times
		row(b, r.Case, gibibytes(r.Snapshot["memory"]), gibibytes(r.Snapshot["size"]), cell(t, "end.lock"), cell(t, "end.save"), cell(t, "end.dump"),
			cell(t, "end.freeze"), cell(t, "end.pack"), cell(t, "push"), cell(t, "pull"), cell(t, "restore"), cell(t, "live.freeze"), cell(t, "live.load"))
	}
}

func gibibytes(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

// cell is the sum of medians of names joined by "+"; empty if one has none.
func cell(times map[string][]float64, names string) string {
	if total, ok := sum(times, names); ok {
		return fmt.Sprintf("%.2f", total)
	}
	return ""
}

func sum(times map[string][]float64, names string) (total float64, ok bool) {
	for name := range strings.SplitSeq(names, "+") {
		seconds, ok := median(times[name])
		if !ok {
			return 0, false
		}
		total += seconds
	}
	return total, true
}
