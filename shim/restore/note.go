package restore

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// NotePath is a file in the root file system of a container that has asked to be restored. By it a program learns that it was, and what differs from what it remembers: CRIU
// gives it the environment and arguments that it had.
const NotePath = "/.cryo/restored.json"

// Note is that file's content.
type Note struct {
	Snapshot string        `json:"snapshot"`
	Digest   digest.Digest `json:"digest"`
	Time     time.Time     `json:"time"` // just before the program goes on
	Hostname struct {
		Was string `json:"was"`
		Is  string `json:"is"`
	} `json:"hostname"`
	// Environment are the variables of the container that differ from those of the snapshot's, with their values; null: it has none of this name. Annotations likewise.
	Environment map[string]*string `json:"environment"`
	Annotations map[string]*string `json:"annotations"`
}

// newNote compares two specifications.
func newNote(was, is *specs.Spec, ref string, d digest.Digest) *Note {
	n := &Note{Snapshot: ref, Digest: d, Time: time.Now().UTC(), Environment: differing(environment(was), environment(is)), Annotations: differing(was.Annotations, is.Annotations)}
	delete(n.Annotations, criu.Annotation) // the shim's, of this bundle
	delete(n.Annotations, runc.MarkAnnotation)
	n.Hostname.Was, n.Hostname.Is = hostname(was), hostname(is)
	return n
}

// environment returns the environment variables of the container's first process.
func environment(s *specs.Spec) map[string]string {
	all := map[string]string{}
	if s.Process == nil {
		return all
	}
	for _, v := range s.Process.Env {
		if name, value, ok := strings.Cut(v, "="); ok {
			all[name] = value
		}
	}
	return all
}

// hostname is the container's. In a pod it is the sandbox's, and CRI writes it into the environment.
func hostname(s *specs.Spec) string {
	return cmp.Or(s.Hostname, environment(s)["HOSTNAME"])
}

// differing returns what differs, as it is.
func differing(was, is map[string]string) map[string]*string {
	all := map[string]*string{}
	for name, value := range is {
		if old, ok := was[name]; !ok || old != value {
			all[name] = &value
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok {
			all[name] = nil
		}
	}
	return all
}

// write writes the file below root, for the container's user alone: environments have passwords. Links do not lead out of root.
func (n *Note) write(root string, spec *specs.Spec) error {
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", NotePath, err)
	}
	var user specs.User
	if spec.Process != nil {
		user = spec.Process.User
	}
	uid, gid, rootUID, rootGID := int(user.UID), int(user.GID), 0, 0
	if l := spec.Linux; l != nil && len(l.UIDMappings) > 0 {
		uid, gid = hostID(l.UIDMappings, user.UID), hostID(l.GIDMappings, user.GID)
		rootUID, rootGID = hostID(l.UIDMappings, 0), hostID(l.GIDMappings, 0)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("write %s: %w", NotePath, err)
	}
	defer dir.Close()
	at, in := NotePath[1:], path.Dir(NotePath[1:])
	made := dir.Mkdir(in, 0o755)
	if made == nil {
		made = dir.Lchown(in, rootUID, rootGID)
	}
	if gone := dir.Remove(at); errors.Is(made, fs.ErrExist) && (gone == nil || errors.Is(gone, fs.ErrNotExist)) {
		made = nil
	}
	err = made
	if err == nil {
		err = dir.WriteFile(at, append(data, '\n'), 0o400)
	}
	if err == nil {
		err = dir.Lchown(at, uid, gid)
	}
	if err != nil {
		return failure.New(errdefs.ErrFailedPrecondition, "leave "+path.Dir(NotePath)+" in the image to cryo", "write /.cryo/restored.json in the container: %v", err)
	}
	return nil
}
