package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// byHand is what image/FORMAT.md says of a restore without cryo, after integration/recipe/restore-by-hand. $0 is the
// directory that made, $1 the container's name.
const byHand = `set -eu
cd "$0"
mkdir -p bundle/rootfs
image=$(jq -r '.container.image + "@" + .container.imageDigest' config.json)
skopeo copy -q --src-tls-verify=false "docker://$(echo "$image" | sed 's/:[^:]*@/@/')" dir:base
for digest in $(jq -r '.layers[].digest' base/manifest.json); do
	tar -x -C bundle/rootfs --numeric-owner -f "base/${digest#sha256:}"
done
tar -tf rootfs.tar | grep '\.wh\.\.wh\.\.opq$' | while read -r mark; do
	find "bundle/rootfs/$(dirname "$mark")" -mindepth 1 -delete
done
tar -x -C bundle/rootfs --numeric-owner --xattrs --xattrs-include='*' -f rootfs.tar
find bundle/rootfs -name '.wh..wh..opq' -delete
find bundle/rootfs -name '.wh.*' | while read -r mark; do
	file=${mark##*/}
	rm -rf "$mark" "${mark%/*}/${file#.wh.}"
done
jq .spec config.json >bundle/config.json
runc restore --detach --bundle bundle --image-path "$PWD/images" "$1" >output 2>&1 </dev/null || { cat output >&2; exit 1; }
`

// TestArtifactRecipe restores containers with oras, zstd, tar, runc and CRIU, and nothing of cryo.
func TestArtifactRecipe(t *testing.T) {
	for _, workload := range [][]string{{"rootfs"}, {"tmpfs", "--plain"}} {
		t.Run(workload[0], func(t *testing.T) { restoreByHand(t, workload) })
	}
}

func restoreByHand(t *testing.T, workload []string) {
	a, b := pair(t)
	f := freeze(t, workload, "--push", "--plain-http")
	recipe, err := filepath.Abs("recipe/restore-by-hand")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(b.Dir, "home", f.id)
	t.Cleanup(func() {
		b.Run(cleanupContext(t), "runc", "delete", "--force", f.id)
		b.Run(cleanupContext(t), "rm", "-rf", dir)
	})
	must(t, a.Cryo(t.Context(), "rm", f.ref))
	must(t, b.Run(t.Context(), "env", "ORAS_FLAGS=--plain-http", recipe, f.ref, dir))
	// What was in a tmpfs is what its name says.
	images, err := filepath.Glob(filepath.Join(dir, "images/tmpfs-dev-*.tar.gz.img"))
	if err != nil || len(images) == 0 {
		t.Errorf("there is no image of a tmpfs (%v)", err)
	}
	for _, image := range images {
		if listed := must(t, b.Run(t.Context(), "tar", "-tzf", image)); !strings.HasPrefix(listed.Stdout, "./\n") || listed.Stderr != "" {
			t.Errorf("%s has\n%s%s", image, listed.Stdout, listed.Stderr)
		}
	}
	must(t, b.Run(t.Context(), "sh", "-c", byHand, dir, f.id))
	var after lab.Answer
	out := must(t, b.Run(t.Context(), "runc", "exec", f.id, "workload", "ask")).Stdout
	if err := json.Unmarshal([]byte(out), &after); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	goneOn(t, f.before, after)
}
