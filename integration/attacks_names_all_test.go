package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// TestAttackLayers has layers that no checkpoint writes: CRIU's tar with memory, or with names that lead out (39), and zstd with a window of 2 GiB, or with a dictionary (28).
func TestAttackLayers(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"count"}))
	frame := func(head ...byte) []byte { return append(append([]byte{0x28, 0xb5, 0x2f, 0xfd}, head...), 1, 0, 0) } // RFC 8878, section 3.1.1: one empty block
	const said = 1 << 10
	for _, test := range []struct {
		name, words string
		content     []byte // of CRIU's layer
		files       map[string][]byte
	}{
		{"28 window of 2 GiB", "does not decompress", frame(0, 21<<3), nil},
		{"28 dictionary", "does not decompress", frame(1, 7<<3, 7), nil},
		{"39 memory", "it is a pages file", nil, map[string][]byte{"pages-1.img": nil}},
		{"39 a name that leads out", "its name begins with a dot", nil, map[string][]byte{"../evil": nil}},
		{"39 a name in another directory", `its name has a '/'`, nil, map[string][]byte{"a/../../evil": nil}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := "cryo.test/layers:1"
			m := g.layer(t, image.MediaTypeCRIU, test.content, said)
			if test.files != nil {
				all := g.images(t)
				maps.Copy(all, test.files)
				m = g.withImages(t, all)
			}
			away(t, ref)
			must(t, b.Cryo(t.Context(), "pull", g.lay(t, ref, m)))
			for _, args := range [][]string{{"verify", ref}, {"restore", ref, "--name", "layers", "--allow", "all"}} {
				refusedCheaply(t, b, test.words, args...)
			}
		})
	}
}

// TestAttackNames has names of containers that are paths, or no names (40).
func TestAttackNames(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g, ref := newForger(t, freeze(t, []string{"count"})), "cryo.test/names:1"
	for _, id := range []string{"../evil", "a/b", "..", "", strings.Repeat("a", 200), "a\nb", "-a", "a b", "é"} {
		t.Run(fmt.Sprintf("%.20q", id), func(t *testing.T) {
			g.forge(t, b, ref, func(c *image.Config, _ *specs.Spec) { c.Container.ID = id })
			before := trace(t, b)
			refusal(t, harmless(t, b, nil, 64<<20, "restore", ref), codeUsage, "identifier")
			wantTrace(t, b, before)
		})
	}
}

// TestAttackText has text of a snapshot that would forge lines, or run backwards, where it is shown (41).
func TestAttackText(t *testing.T) {
	_, b := pair(t)
	g, ref := newForger(t, freeze(t, []string{"count"})), "cryo.test/text:1"
	const forged = "x\nSignatures:  signed by you\tok\u202Etxt\u2028\u0085\x1b[2J\x1b]0;x\a\r"
	lines := func(t *testing.T, change func(c *image.Config, s *specs.Spec, text string), text, command string) (n int, said string) {
		t.Helper()
		g.forge(t, b, ref, func(c *image.Config, s *specs.Spec) { change(c, s, text) })
		r := harmless(t, b, nil, 64<<20, command, ref)
		if command == "restore" && r.Code == 0 {
			t.Error("it is restored")
		}
		return strings.Count(r.Stdout+r.Stderr, "\n"), r.Stdout + r.Stderr
	}
	for name, test := range map[string]struct {
		change   func(c *image.Config, s *specs.Spec, text string)
		commands []string
	}{
		"process":   {func(c *image.Config, _ *specs.Spec, text string) { c.Processes[0].Command = text }, []string{"inspect"}},
		"image":     {func(c *image.Config, _ *specs.Spec, text string) { c.Container.Image = text }, []string{"inspect"}},
		"container": {func(c *image.Config, _ *specs.Spec, text string) { c.Container.ID = "/" + text }, []string{"inspect", "restore"}},
		"kernel":    {func(c *image.Config, _ *specs.Spec, text string) { c.Host.Kernel, c.Host.CRIU = text, text }, []string{"inspect"}},
		"mount": {func(_ *image.Config, s *specs.Spec, text string) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/" + text, Destination: "/" + text})
		}, []string{"inspect", "verify", "restore"}},
	} {
		for _, command := range test.commands {
			t.Run(name+" "+command, func(t *testing.T) {
				plain, _ := lines(t, test.change, "x", command)
				got, said := lines(t, test.change, forged, command)
				if command == "inspect" && got != plain { // the others may break an error's text, and indent what follows
					t.Errorf("%d lines instead of %d: %q", got, plain, said)
				}
				if i := strings.IndexFunc(said, func(r rune) bool {
					return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029')
				}); i >= 0 || strings.Contains(said, "\nSignatures:") {
					t.Errorf("it says %q", said)
				}
			})
		}
	}
}

// TestAttackTags has a layout that names a snapshot as the user has named another, and a snapshot whose base image claims to be the latest (44).
func TestAttackTags(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	f := freeze(t, []string{"count"})
	g, ref := newForger(t, f), "cryo.test/tags:1"
	g.forge(t, b, ref, func(*image.Config, *specs.Spec) {})
	mine := inspect(t, b, ref).Digest
	from := g.lay(t, ref, g.withConfig(t, func(config, _ map[string]any) { config["container"].(map[string]any)["id"] = "theirs" }))
	before := trace(t, b)
	r := harmless(t, b, nil, 64<<20, "pull", strings.TrimSuffix(from, ":"+ref))
	if r.Code == 0 || !strings.Contains(r.Stderr, "hint: ") || !strings.Contains(r.Stderr, ref) {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if now := inspect(t, b, ref).Digest; now != mine {
		t.Errorf("the name was of %s and is of %s", mine, now)
	}
	wantTrace(t, b, before, "blob ")

	far := newHost(t, "tags", lab.HostOptions{})
	forgetAll(t, far)
	latest := shared.image[:strings.LastIndex(shared.image, ":")] + ":latest"
	to, id := shared.registry.Reference("tags/"+name(t)+":1"), name(t)
	g.forge(t, a, to, func(c *image.Config, _ *specs.Spec) { c.Container.Image = latest })
	must(t, a.Cryo(t.Context(), "push", to, "--plain-http"))
	cleanup(t, far, id)
	must(t, far.Cryo(t.Context(), "restore", to, "--plain-http", "--name", id))
	goneOn(t, f.before, await(t, far, id))
	remove(t.Context(), far, id)
	names := strings.Fields(must(t, far.Ctr(t.Context(), "images", "ls", "-q")).Stdout)
	if len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return !strings.Contains(n, "@sha256:") }) {
		t.Errorf("containerd has images of the names %q", names)
	}
}
