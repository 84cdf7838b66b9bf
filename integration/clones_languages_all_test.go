package integration

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// clonesOfEach is the number of clones of each program. The test restores two at once. The variable CRYO_CLONES overrides the number.
func clonesOfEach(t *testing.T) int {
	if n := os.Getenv("CRYO_CLONES"); n != "" {
		count, err := strconv.Atoi(n)
		if err != nil || count < 2 {
			t.Fatalf("CRYO_CLONES=%q is no number of clones", n)
		}
		return count
	}
	return 10
}

// drawnBy are the values of clones: what each has drawn when it was restored, and what when it had made anew what it can; by library.
type drawnBy struct{ drawn, renewed map[string][]string }

func (d *drawnBy) add(library, word, value string) {
	switch word {
	case "drawn":
		d.drawn[library] = append(d.drawn[library], value)
	case "renewed":
		d.renewed[library] = append(d.renewed[library], value)
	}
}

// verdict says of what clones have drawn, each one value or several that follow each other, whether no two have a value in common ("different"), or each has one in common with the
// clone that was restored beside it ("equal"); "" if neither, or if some have drawn nothing. Pairs are compared, since OpenSSL seeds its generators anew after a while.
func verdict(draws []string, clones int) string {
	if len(draws) != clones {
		return ""
	}
	apart, pairs := true, 0
	seen := map[string]bool{}
	for pair := range slices.Chunk(draws, 2) {
		var values [2][]string
		for i, drawn := range pair {
			values[i] = strings.Fields(drawn)
			for _, value := range values[i] {
				apart = apart && !seen[value]
			}
			for _, value := range values[i] {
				seen[value] = true
			}
		}
		if slices.ContainsFunc(values[0], func(value string) bool { return slices.Contains(values[1], value) }) {
			pairs++
		}
	}
	switch {
	case pairs == clones/2:
		return "equal"
	case apart:
		return "different"
	}
	return ""
}

// documented reads the table of libraries of CONTRACT.md: what clones draw, and what after they have made anew what they can.
func documented(t *testing.T) map[string][2]string {
	t.Helper()
	f, err := os.Open("../shim/CONTRACT.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	row := regexp.MustCompile(`^\| (.*) \| (equal|different) \| (equal|different) \|`)
	all := map[string][2]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			for library := range strings.SplitSeq(strings.ReplaceAll(m[1], "`", ""), ", ") {
				all[library] = [2]string{m[2], m[3]}
			}
		}
	}
	return all
}

// TestClonesLanguages restores clones of programs in several languages, two at once, and finds of each library what CONTRACT.md says.
func TestClonesLanguages(t *testing.T) {
	h := newHost(t, name(t), lab.HostOptions{})
	program{image: serversImage}.provide(t, h)
	mounts := sources(t)
	drawIn(t, h, "Python", serversImage, mounts, "python3", "-B", "/clones/draw.py")
	drawIn(t, h, "Node", serversImage, append(mounts, "--annotation", "io.cryo.io-uring=refuse"), "node", "/clones/draw.js")
	t.Run("Go", func(t *testing.T) { drawInGo(t, h) })
}

// TestClonesJava is TestClonesLanguages with Java, whose image is large.
func TestClonesJava(t *testing.T) {
	h := newHost(t, name(t), lab.HostOptions{})
	program{image: largeImage}.provide(t, h)
	drawIn(t, h, "Java", largeImage, sources(t), "java", "/clones/Draw.java")
}

// sources are flags of ctr run by which a container has the programs that draw, and contrib/contract.
func sources(t *testing.T) (flags []string) {
	t.Helper()
	for source, destination := range map[string]string{"clones": "/clones", "../contrib/contract": "/contract"} {
		path, err := filepath.Abs(source)
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--mount", "type=bind,src="+path+",dst="+destination+",options=rbind:ro")
	}
	return append(flags, "--env", "PYTHONPATH=/contract")
}

// drawIn takes a program's snapshot when it is ready, restores clones, and judges what they print.
func drawIn(t *testing.T, h *lab.Host, language, image string, flags []string, command ...string) {
	t.Run(language, func(t *testing.T) {
		id := name(t)
		startImage(t, h, image, id, slices.Concat(control, flags), command...)
		all := cloneAndDraw(t, h, id, []string{"--when-ready"}, []string{"--allow", "mounts"}, func(clone string, d *drawnBy) error {
			prints(t, h, clone, "over")
			for line := range strings.Lines(logged(t, h, clone)) {
				word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
				library, value, _ := strings.Cut(rest, ": ")
				d.add(library, word, value)
			}
			return nil
		})
		judge(t, language, all)
	})
}

// drawInGo is drawIn for the workload "clones".
func drawInGo(t *testing.T, h *lab.Host) {
	id := name(t)
	start(t, h, id, nil, "workload", "clones")
	judge(t, "Go", cloneAndDraw(t, h, id, nil, nil, func(clone string, d *drawnBy) error {
		await(t, h, clone)
		for _, step := range []struct{ word, command string }{{"drawn", "draw"}, {"renewed", "renew"}} {
			a, err := h.Ask(t.Context(), clone, step.command)
			if err != nil {
				return err
			}
			for library, value := range a.State {
				d.add(library, step.word, fmt.Sprint(value))
			}
		}
		return nil
	}))
}

// cloneAndDraw takes a container's snapshot, restores clones, two at once, and has read collect what each has drawn.
func cloneAndDraw(t *testing.T, h *lab.Host, id string, checkpoint, restore []string, read func(clone string, d *drawnBy) error) *drawnBy {
	t.Helper()
	ref := "clones/" + id + ":1"
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), slices.Concat([]string{"checkpoint", id, ref}, checkpoint)...))
	all := &drawnBy{map[string][]string{}, map[string][]string{}}
	for n := 0; n < clonesOfEach(t); n += 2 {
		clones := []string{fmt.Sprintf("%s-%d", id, n), fmt.Sprintf("%s-%d", id, n+1)}
		results := make([]lab.Result, len(clones))
		var restores sync.WaitGroup
		for i, clone := range clones {
			cleanup(t, h, clone)
			restores.Go(func() {
				results[i] = h.Cryo(t.Context(), slices.Concat([]string{"restore", ref, "--name", clone}, restore)...)
			})
		}
		restores.Wait()
		for i, clone := range clones {
			must(t, results[i])
			if err := read(clone, all); err != nil {
				t.Fatal(err)
			}
			remove(t.Context(), h, clone)
		}
	}
	return all
}

// judge compares what clones have drawn with the table of CONTRACT.md.
func judge(t *testing.T, language string, all *drawnBy) {
	t.Helper()
	table, clones := documented(t), (clonesOfEach(t)+1)/2*2
	if len(all.drawn) == 0 {
		t.Error("nothing was drawn")
	}
	for library, values := range all.drawn {
		got := [2]string{verdict(values, clones), verdict(all.renewed[library], clones)}
		t.Logf("%s: %s in %d clones: %s, made anew %s", language, library, clones, got[0], got[1])
		if want := table[library]; got != want {
			t.Errorf("%s: %d clones draw %q, made anew %q; CONTRACT.md has %q", library, clones, got[0], got[1], want)
		}
	}
}
