package main

import (
	"bytes"
	"fmt"
	"strings"
)

// times is the table of checkpoints that leave the container running beside the same by hand, on the same process in turn.
func (p *report) times(b *bytes.Buffer) {
	begun := false
	for _, r := range p.Results {
		gibs, ok := strings.CutPrefix(r.Case, "plain-")
		if !ok || len(r.Times["live.freeze"]) == 0 || len(r.Times["hand.dump"]) == 0 {
			continue
		}
		if !begun {
			fmt.Fprint(b, "\n## A checkpoint beside the same by hand\n\nSeconds, medians. cryo and by hand: in turn, on one process in one container, which runs on. No container: "+
				"another process, outside of containers.\nPackaging, while the process runs on: cryo cuts, compresses and hashes segments, by hand it is tar. "+
				"Restore: cryo from the snapshot to running, by hand untar, criu and driver.\n\n")
			row(b, "device memory", "who", "lock", "device to host", "CRIU", "files", "host to device, unlock", "frozen", "cryo's overhead", "packaging", "restore")
			row(b, "---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
			begun = true
		}
		size, t, bare := gibs+" GiB", r.Times, p.timesOf("bare-"+gibs)
		hand, _ := sum(t, "hand.lock+hand.checkpoint+hand.dump+hand.restore+hand.unlock")
		freeze, _ := median(t["live.freeze"])
		row(b, fmt.Sprintf("%s, rounds: %d", size, len(t["hand.dump"])), "cryo", cell(t, "live.lock"), cell(t, "live.save"), cell(t, "live.dump"), cell(t, "live.rootfs"), cell(t, "live.load"),
			fmt.Sprintf("**%.2f**", freeze), fmt.Sprintf("**%+.1f %%**", 100*(freeze/hand-1)), cell(t, "live.pack"), cell(t, "restore"))
		row(b, size, "by hand", cell(t, "hand.lock"), cell(t, "hand.checkpoint"), cell(t, "hand.dump"), "", cell(t, "hand.restore+hand.unlock"),
			fmt.Sprintf("**%.2f**", hand), "", cell(t, "hand.tar"), "")
		if bare != nil {
			row(b, size, "no container", cell(bare, "bare.lock"), cell(bare, "bare.checkpoint"), cell(bare, "bare.dump"), "", "", "", "",
				cell(bare, "bare.tar"), cell(bare, "bare.untar+bare.criu restore+bare.restore+bare.unlock"))
		}
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
	fmt.Fprintf(b, "\n## From host to host\n\nSeconds. Device memory is part of memory here: the driver has moved it there. Frozen includes the wait until work on the GPU has ended.\n\n")
	row(b, "case", "memory, GiB", "snapshot, GiB", "save", "CRIU", "frozen until it ended", "packaging", "push", "pull", "restore", "left running: frozen")
	row(b, "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
	for _, r := range p.Results {
		if len(r.Times["restore"]) == 0 {
			continue
		}
		t := r.Times
		row(b, r.Case, gib(r.Snapshot["memory"]), gib(r.Snapshot["size"]), cell(t, "end.save"), cell(t, "end.dump"),
			cell(t, "end.freeze"), cell(t, "end.pack"), cell(t, "push"), cell(t, "pull"), cell(t, "restore"), cell(t, "live.freeze"))
	}
}

func gib(n int64) string { return fmt.Sprintf("%.2f", float64(n)/(1<<30)) }

func gibibytes(n int64) string { return gib(n) + " GiB" }

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
