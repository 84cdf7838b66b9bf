package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestCLIProgress draws how far it is on a terminal, and nothing anywhere else.
func TestCLIProgress(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count", "--memory", "32"})
	for _, command := range []string{"push --plain-http", "verify"} {
		args := append(strings.Fields(command), f.ref)
		if r := must(t, a.Cryo(t.Context(), args...)); r.Stderr != "" || strings.ContainsAny(r.Stdout, "\r\033") {
			t.Errorf("%s says, although there is no terminal: %q %q", command, r.Stdout, r.Stderr)
		}
		drawn := must(t, a.Run(t.Context(), "script", "--quiet", "--return", "--command", "cryo "+strings.Join(args, " "), "/dev/null")).Stdout
		if verb, _, _ := strings.Cut(command, " "); !strings.Contains(drawn, "\r\033[K"+verb) || !strings.Contains(drawn, "100 %") {
			t.Errorf("%s draws nothing on a terminal: %q", command, drawn)
		}
		if last := drawn[strings.LastIndex(drawn, "\033[K")+3:]; !strings.HasPrefix(last, "pushed ") && !strings.HasPrefix(last, f.ref) {
			t.Errorf("%s leaves on the terminal %q", command, last)
		}
		var last struct {
			Activity              string
			BytesDone, BytesTotal int64
			Ended                 bool
		}
		verb, _, _ := strings.Cut(command, " ")
		lines := strings.Split(strings.TrimSpace(must(t, a.Cryo(t.Context(), append(args, "--progress", "json")...)).Stderr), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Activity != verb || !last.Ended || last.BytesDone == 0 || last.BytesDone != last.BytesTotal {
			t.Errorf("%s tells programs %q, %v", command, lines, err)
		}
		if drawn := must(t, a.Run(t.Context(), "script", "--quiet", "--return", "--command", "cryo --progress none "+strings.Join(args, " "), "/dev/null")).Stdout; strings.Contains(drawn, "\033") {
			t.Errorf("%s --progress none draws %q", command, drawn)
		}
	}
}
