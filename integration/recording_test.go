package integration

import (
	"encoding/xml"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// recordingFile is the recorded tour that README.md shows.
const recordingFile = "demo/tour.svg"

// recording is what a user sees who types the commands of a document: lines, and when each appears.
type recording struct {
	at    time.Duration // the end of what is there
	lines []recordedLine
}

type recordedLine struct {
	at    time.Duration
	typed string // what the user has typed behind the prompt, the host's name; empty: it was printed
	text  string
}

// How long a recording shows a command before it is run, and the shortest time for which it shows what it has printed.
const (
	shown  = 1200 * time.Millisecond
	rested = 800 * time.Millisecond
)

// add adds a command, what it has printed, and how long it took.
func (r *recording) add(host, command, printed string, took time.Duration) {
	r.lines = append(r.lines, recordedLine{r.at, command, host + "# "})
	r.at += shown + took
	for line := range strings.Lines(lastFrame(printed)) {
		line = strings.TrimRight(colours.ReplaceAllString(line, ""), "\n")
		r.lines = append(r.lines, recordedLine{at: r.at, text: strings.ReplaceAll(line, "\t", " ")})
	}
	r.at += rested
}

// colours are what a program colours its output by.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// lastFrame returns what a terminal shows in the end of output that was drawn several times, as ctr's progress, each time from the same first word on.
func lastFrame(printed string) string {
	word, _, drawn := strings.Cut(printed, "\t")
	if !drawn || strings.Contains(word, "\n") {
		return printed
	}
	return printed[strings.LastIndex("\n"+printed, "\n"+word+"\t"):]
}

// published puts a name of documents into what was printed, in place of another, and keeps columns in their places: a table's other lines get as many spaces as the name is longer.
func published(printed, ours, public string) string {
	longer := strings.Repeat(" ", max(0, len(public)-len(ours)))
	lines := strings.Split(printed, "\n")
	for i, line := range lines {
		at := strings.Index(line, ours)
		if at > 0 && line[at-1] != ' ' || at < 0 {
			continue
		}
		if end := at + strings.IndexAny(line[at:]+" ", " \t"); !strings.HasPrefix(line[end:], "  ") || i == 0 || len(lines[i-1]) <= end || strings.Contains(lines[i-1], public) {
			continue // it is in no table, or its heading has been moved
		} else if heading := lines[i-1]; strings.ToUpper(heading) == heading {
			lines[i-1] = heading[:end] + longer + heading[end:]
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), ours, public)
}

// Sizes of a recording, in pixels; rows of text are shown at a time, each of so many characters at most.
const (
	recordingRows, recordingColumns = 24, 118
	recordingRow, recordingColumn   = 18, 8
)

// svg draws a terminal that shows the lines as they have appeared, scrolls, and begins anew after some seconds. Where no movement is wanted, it shows the last lines.
func (r *recording) svg() string {
	whole := (r.at + 4*time.Second).Seconds()
	width, height := recordingColumns*recordingColumn+24, recordingRows*recordingRow+24
	var b, frames strings.Builder
	scrolled := 0
	fmt.Fprintf(&frames, "@keyframes scroll { 0%% { transform: translateY(0) }")
	for n, l := range r.lines {
		if over := n + 1 - recordingRows; over > scrolled {
			fmt.Fprintf(&frames, " %.3f%% { transform: translateY(%dpx) } %.3[1]f%% { transform: translateY(%[3]dpx) }", 100*l.at.Seconds()/whole, -scrolled*recordingRow, -over*recordingRow)
			scrolled = over
		}
	}
	fmt.Fprintf(&frames, " 100%% { transform: translateY(%dpx) } }\n", -scrolled*recordingRow)
	for n, l := range r.lines {
		text := []rune(l.text + l.typed)
		if len(text) > recordingColumns {
			text = append(text[:recordingColumns-1], '…')
		}
		prompt, rest := "", string(text)
		if l.typed != "" {
			prompt, rest = l.text, strings.TrimPrefix(string(text), l.text)
		}
		fmt.Fprintf(&frames, "@keyframes l%d { 0%%, %.3f%% { visibility: hidden } %.3[2]f%%, 100%% { visibility: visible } }\n", n, 100*l.at.Seconds()/whole)
		fmt.Fprintf(&b, `<text x="0" y="%d" style="animation-name: l%d"><tspan class="prompt">%s</tspan>%s</text>`+"\n", (n+1)*recordingRow-5, n, html.EscapeString(prompt), html.EscapeString(rest))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>A container with Redis moves from one host to another</title>
<style>
text { font: 13px monospace; fill: #e6edf3; white-space: pre; animation: %[3]fs step-end infinite } .prompt { fill: #7ee787 }
#lines { animation: scroll %[3]fs step-end infinite; transform: translateY(%[4]dpx) }
@media (prefers-reduced-motion: reduce) { text, #lines { animation: none } }
%[5]s</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<svg x="12" y="12" width="%[6]d" height="%[7]d"><g id="lines" xml:space="preserve">
%[8]s</g></svg>
</svg>
`, width, height, whole, -scrolled*recordingRow, frames.String(), width-24, recordingRows*recordingRow, b.String())
}

// record writes the recording into the file that the environment names, if it does.
func (r *recording) record(t *testing.T) {
	t.Helper()
	if path := os.Getenv("CRYO_RECORDING"); path != "" {
		if err := os.WriteFile(path, []byte(r.svg()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRecording: the recorded tour has the commands of README.md.
func TestRecording(t *testing.T) {
	data, err := os.ReadFile(filepath.FromSlash(recordingFile))
	if err != nil {
		t.Fatal(err)
	}
	var typed, recorded []string
	for _, c := range console(t, "README.md") {
		typed = append(typed, c.host+"# "+c.command)
	}
	for _, m := range regexp.MustCompile(`(?m)<tspan class="prompt">(.+)</tspan>(.*)</text>$`).FindAllStringSubmatch(string(data), -1) {
		recorded = append(recorded, html.UnescapeString(m[1]+m[2]))
	}
	if !slices.Equal(typed, recorded) {
		t.Errorf("%s is of other commands than README.md: make tour\n%s\n%s", recordingFile, strings.Join(recorded, "\n"), strings.Join(typed, "\n"))
	}
}

// TestRecordingText: a recording shows what a terminal does in the end, under the names of documents, and is SVG whatever was printed.
func TestRecordingText(t *testing.T) {
	table := published("NAME  SNAPSHOT         MEMORY\na     10.0.0.1:5/s:warm  all\nb     10.0.0.1:5/t:warm  all\n", "10.0.0.1:5", "registry.example.com")
	if want := "NAME  SNAPSHOT                   MEMORY\na     registry.example.com/s:warm  all\nb     registry.example.com/t:warm  all\n"; table != want {
		t.Errorf("is\n%s\nnot\n%s", table, want)
	}
	r := new(recording)
	r.add("first", "ctr images pull x", "x \tfetching\n\x1b[32mwait\nx \tsaved\n<done> & \x1b[0mgone\n", time.Second)
	got := r.svg()
	for _, want := range []string{">x  saved<", "&lt;done&gt; &amp; gone<", `<tspan class="prompt">first# </tspan>ctr images pull x<`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "fetching") || strings.Contains(got, "%!") {
		t.Error(got)
	}
	if err := xml.Unmarshal([]byte(got), new(struct{})); err != nil {
		t.Error(err)
	}
}
