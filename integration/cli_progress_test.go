package integration

import (
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
	}
}
