package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// inNode and inJava are programs that take part, by what their languages have.
const (
	inNode = `
const fs = require('fs'), readline = require('readline'), dir = process.env.CRYO_CONTROL_DIR;
fs.mkdirSync(dir, { recursive: true });
require('child_process').execFileSync('mkfifo', [dir + '/events']);
const lines = readline.createInterface({ input: fs.createReadStream(null, { fd: fs.openSync(dir + '/events', 'r+') }) });
lines.on('line', line => {
	const [name, generation] = line.split(' ');
	console.log('event ' + name);
	if (name === 'restored') {
		const changes = JSON.parse(fs.readFileSync(dir + '/restored.json'));
		console.log('identity ' + (String(changes.generation) === generation ? generation : 'wrong'));
	}
});
fs.writeFileSync(dir + '/ready', '');
console.log('waits');`
	inJava = `
import java.io.*;
import java.nio.file.*;
public class Main {
	public static void main(String[] args) throws Exception {
		Path dir = Files.createDirectories(Path.of(System.getenv("CRYO_CONTROL_DIR")));
		new ProcessBuilder("mkfifo", dir + "/events").start().waitFor();
		RandomAccessFile events = new RandomAccessFile(dir + "/events", "rw");
		Files.writeString(dir.resolve("ready"), "");
		System.out.println("waits");
		for (String line; (line = events.readLine()) != null;) {
			String[] words = line.split(" ");
			System.out.println("event " + words[0]);
			if (words[0].equals("restored"))
				System.out.println("identity " + (Files.readString(dir.resolve("restored.json")).contains("\"generation\": " + words[1] + ",") ? words[1] : "wrong"));
		}
	}
}`
)

// example builds contrib/contract's program in Go.
func example(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "example")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./example")
	build.Dir, build.Env = "../contrib/contract", append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// TestContractPrograms runs programs in several languages that wait for events, with contrib/contract and without it. It restores two clones of each, and wants them to differ.
func TestContractPrograms(t *testing.T) { takePart(t, serversImage) }

// TestContractJava is TestContractPrograms with Java, whose image is large.
func TestContractJava(t *testing.T) { takePart(t, largeImage) }

func takePart(t *testing.T, image string) {
	h := newHost(t, name(t), lab.HostOptions{})
	program{image: image}.provide(t, h)
	contract, err := filepath.Abs("../contrib/contract")
	if err != nil {
		t.Fatal(err)
	}
	java := t.TempDir()
	if err := os.WriteFile(filepath.Join(java, "Main.java"), []byte(inJava), 0o644); err != nil {
		t.Fatal(err)
	}
	mount := func(source, destination string) []string {
		return []string{"--mount", "type=bind,src=" + source + ",dst=" + destination + ",options=rbind:ro"}
	}
	languages := map[string]struct {
		image   string
		flags   []string
		command []string
	}{
		"Python": {serversImage, mount(contract, "/contract"), []string{"python3", "-B", "/contract/web_server.py"}},
		"Go":     {serversImage, mount(example(t), "/example"), []string{"/example"}},
		"Node":   {serversImage, []string{"--annotation", "io.cryo.io-uring=refuse"}, []string{"node", "-e", inNode}},
		"shell": {serversImage, nil, []string{"bash", "-c", `mkdir -p $CRYO_CONTROL_DIR; cd $CRYO_CONTROL_DIR; mkfifo events; exec 3<>events; touch ready; echo waits
while read -r name generation <&3; do echo "event $name"; [ $name != restored ] || echo "identity $generation"; done`}},
		"Java": {largeImage, mount(java, "/java"), []string{"java", "/java/Main.java"}},
	}
	for language, l := range languages {
		if l.image != image {
			continue
		}
		t.Run(language, func(t *testing.T) {
			id, ref := name(t), "contract/"+name(t)+":1"
			startImage(t, h, image, id, slices.Concat(control, l.flags), l.command...)
			forget(t, h, ref)
			must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--when-ready", "--leave-running"))
			prints(t, h, id, "event resumed")
			var identities []string
			for _, clone := range []string{id + "-1", id + "-2"} {
				cleanup(t, h, clone)
				must(t, h.Cryo(t.Context(), "restore", ref, "--name", clone, "--allow", "mounts"))
				identity, _, _ := strings.Cut(prints(t, h, clone, "identity "), "\n")
				identities = append(identities, identity)
				remove(t.Context(), h, clone)
			}
			if identities[0] == identities[1] || !regexp.MustCompile(`[0-9]`).MatchString(identities[0]+identities[1]) || slices.Contains(identities, "wrong") {
				t.Errorf("the clones are %q", identities)
			}
		})
	}
}
