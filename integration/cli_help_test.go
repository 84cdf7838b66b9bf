package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCLIHelp reads the help of every command: it has examples, and says what the flags do.
func TestCLIHelp(t *testing.T) {
	a, _ := pair(t)
	commands := completions(t, "")
	for _, command := range []string{"checkpoint", "restore", "push", "pull", "ls", "ps", "logs", "inspect", "verify", "sign", "tag", "rm", "df", "prune", "prewarm", "node", "doctor", "version", "completion"} {
		if !slices.Contains(commands, command) {
			t.Errorf("there is no command %s: %v", command, commands)
		}
	}
	for _, command := range append(commands, "prewarm ls", "prewarm rm", "node install", "") {
		if command == "help" {
			continue
		}
		words := append(strings.Fields(command), "--help")
		help := must(t, a.Cryo(t.Context(), words...)).Stdout
		if command != "completion" && !strings.Contains(help, "\nExamples:\n  cryo "+command) && !strings.Contains(help, "\nExamples:\n  ctr ") {
			t.Errorf("cryo %s has no examples:\n%s", strings.Join(words, " "), help)
		}
		for _, line := range regexp.MustCompile(`(?m)^ +(?:-\w, +)?--[\w-]+(?: \w+)?$`).FindAllString(help, -1) {
			t.Errorf("cryo %s does not say what this flag does: %s", strings.Join(words, " "), line)
		}
		if missing := a.Cryo(t.Context(), append(strings.Fields(command), "--no-such-flag")...); missing.Code != codeUsage {
			t.Errorf("cryo %s --no-such-flag: exit code %d, want %d", command, missing.Code, codeUsage)
		}
	}
}

// TestCLICompletion completes in bash what a user types.
func TestCLICompletion(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	script := filepath.Join(a.Dir, "home", "completion.bash")
	if err := os.WriteFile(script, []byte(must(t, a.Cryo(t.Context(), "completion", "bash")).Stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ typed, want string }{
		{"cryo che", "checkpoint"},
		{"cryo checkpoint " + id[:len(id)-2], id},
		{"cryo restore --net", "--network-ns"},
		{"cryo prewarm r", "rm"},
		{"cryo prewarm " + f.ref[:len(f.ref)-2], f.ref},
		{"cryo verify " + f.ref[:len(f.ref)-2], f.ref},
	} {
		// What bash does when the user presses the tabulator, with what the package bash-completion gives.
		const press = `source "$0"; COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
			_init_completion() { read -ra words <<<"$COMP_LINE"; cword=$((${#words[@]} - 1)); cur=${words[cword]} prev=${words[cword - 1]}; }
			__ltrim_colon_completions() { :; }
			compopt() { :; }
			COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}
			__start_cryo; printf '%s\n' "${COMPREPLY[@]}"`
		out := must(t, a.Run(t.Context(), "bash", "-c", press, script, test.typed)).Stdout
		if !slices.Contains(strings.Fields(out), test.want) {
			t.Errorf("%q completes to %q, want %s", test.typed, out, test.want)
		}
	}
}

// completions asks cryo as the completion scripts do.
func completions(t *testing.T, args ...string) (found []string) {
	t.Helper()
	a, _ := pair(t)
	for line := range strings.Lines(must(t, a.Cryo(t.Context(), append([]string{"__complete"}, args...)...)).Stdout) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
			found = append(found, word)
		}
	}
	return found
}
