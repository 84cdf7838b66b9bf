package kubernetes

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// pgrep stands in for the one that Debian's busybox lacks: critest looks for a sleep with it.
const pgrep = `#!/bin/sh
for d in /proc/[0-9]*; do read -r name <$d/comm 2>/dev/null && [ "$name" = "$1" ] && echo "${d#/proc/}"; done
exit 0
`

// ipcs stands in for the one that busybox is built without.
const ipcs = "#!/bin/sh\ncat /proc/sysvipc/shm\n"

// What critest's images have of users and groups.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/home:/bin/false\ndefault-user:x:1000:1000::/home:/bin/sh\n"
	group = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"
)

// pushCritestImages puts what critest pulls into the registry: the names are upstream's, without the registries' part, and the content is busybox and a
// program that stands in for upstream's.
func pushCritestImages(t *testing.T) {
	t.Helper()
	program := read(t, shared.Lab.Tool("kubernetes/standin"))
	base := layer(t, busybox(t)...)
	web := layer(t, lab.File{Name: "usr/sbin/nginx", Mode: 0o755, Content: program}, lab.File{Name: "usr/sbin/httpd", Mode: 0o755, Link: "nginx"})
	privileges := layer(t, lab.File{Name: "nnp", Mode: 0o4755, Content: program})
	const tests = "k8s-staging-cri-tools/"
	user := func(u string) ocispec.ImageConfig { return ocispec.ImageConfig{User: u, Cmd: []string{"sh"}} }
	label := func(n string) ocispec.ImageConfig {
		return ocispec.ImageConfig{Cmd: []string{"sh"}, Labels: map[string]string{"n": n}}
	}
	for _, image := range []struct {
		name   string
		config ocispec.ImageConfig
		layers [][]byte
	}{
		{"pause:3.9", ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, [][]byte{layer(t, lab.File{Name: "pause", Mode: 0o755, Content: program})}},
		{"e2e-test-images/busybox:1.29-2", ocispec.ImageConfig{Cmd: []string{"sh"}}, [][]byte{base}},
		{"e2e-test-images/nginx:1.14-2", ocispec.ImageConfig{Cmd: []string{"/usr/sbin/nginx"}}, [][]byte{base, web}},
		{"e2e-test-images/httpd:2.4.39-4", ocispec.ImageConfig{Cmd: []string{"/usr/sbin/httpd"}}, [][]byte{base, web}},
		{tests + "hostnet-nginx-amd64:latest", ocispec.ImageConfig{Cmd: []string{"/usr/sbin/nginx"}, Env: []string{"PORT=12003"}}, [][]byte{base, web}},
		{"e2e-test-images/nonewprivs:1.3", ocispec.ImageConfig{Entrypoint: []string{"/nnp"}}, [][]byte{base, privileges}},
		{tests + "test-image-user-uid:latest", user("1002"), [][]byte{base}},
		{tests + "test-image-user-username:latest", user("www-data"), [][]byte{base}},
		{tests + "test-image-user-uid-group:latest", user("1003:users"), [][]byte{base}},
		{tests + "test-image-user-username-group:latest", user("www-data:100"), [][]byte{base}},
		{tests + "test-image-predefined-group:latest", user("1000"), [][]byte{base}},
		{tests + "test-image-1:latest", label("1"), [][]byte{base}},
		{tests + "test-image-2:latest", label("2"), [][]byte{base}},
		{tests + "test-image-3:latest", label("3"), [][]byte{base}},
		{tests + "test-image-tags:1", label("tags"), [][]byte{base}},
		{tests + "test-image-tags:2", label("tags"), [][]byte{base}},
		{tests + "test-image-tags:3", label("tags"), [][]byte{base}},
		{tests + "test-image-latest:latest", label("latest"), [][]byte{base}},
		{tests + "test-image-tag:test", label("tag"), [][]byte{base}},
		{tests + "test-image-tag:all", label("all"), [][]byte{base}},
		{tests + "test-image-digest:latest", label("digest"), [][]byte{base}},
	} {
		image.config.Env = append(image.config.Env, "PATH=/bin:/sbin:/usr/bin:/usr/sbin")
		if _, err := shared.Registry.Push(t.Context(), image.name, image.config, image.layers...); err != nil {
			t.Fatal(err)
		}
	}
}

// busybox is a root file system with all of its applets.
func busybox(t *testing.T) []lab.File {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	var files []lab.File
	for _, dir := range strings.Fields("bin dev etc home proc root sbin sys usr usr/bin usr/sbin var var/run var/www www") {
		files = append(files, lab.File{Name: dir + "/", Mode: 0o755})
	}
	files = append(files, lab.File{Name: "tmp/", Mode: 0o1777}, lab.File{Name: "etc/passwd", Mode: 0o644, Content: []byte(passwd)},
		lab.File{Name: "etc/group", Mode: 0o644, Content: []byte(group)}, lab.File{Name: "bin/busybox", Mode: 0o755, Content: read(t, program)},
		lab.File{Name: "bin/pgrep", Mode: 0o755, Content: []byte(pgrep)},
		lab.File{Name: "bin/ipcs", Mode: 0o755, Content: []byte(ipcs)})
	for _, applet := range strings.Fields(string(list)) {
		if !slices.Contains([]string{"busybox", "pgrep", "ipcs"}, applet) {
			files = append(files, lab.File{Name: "bin/" + applet, Mode: 0o777, Link: "busybox"})
		}
	}
	return files
}

func layer(t *testing.T, files ...lab.File) []byte {
	t.Helper()
	content, err := lab.Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
