package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// exitExists is cryo's exit code for a name that is taken.
const exitExists = 5

// again kills the command and gives it again at once.
func again(ctx context.Context, r *round, pid int) error {
	if err := send(pid, syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	second := r.host.Run(ctx, r.op.words(r)...)
	r.note("the second: exit %d: %s", second.Code, strings.TrimSpace(second.Stderr))
	if second.Code != exitExists {
		r.second = &second
		return nil
	}
	time.Sleep(2 * time.Second)
	if there := r.host.Ctr(ctx, "containers", "info", r.id); there.Code != exitOK {
		r.violate("a name is taken by a container that is gone two seconds later: %s", second.Stderr)
	}
	return nil // it is there until a user removes it
}

// damage damages one of three things: index.json, index.json and its backup, or the manifest of the snapshot that restores begin with. cryo must work without the index, and must keep the
// blobs of that snapshot.
func damage(_ context.Context, r *round, _ int) error {
	if r.choice.Target == "manifest" {
		return r.damageManifest()
	}
	index := filepath.Join(r.host.CryoRoot(), "store/index.json")
	paths := []string{index}
	if r.choice.Target == "indexes" {
		paths = append(paths, filepath.Join(r.host.CryoRoot(), "index.backup.json"))
	}
	entries, err := r.entries()
	if err != nil {
		return err
	}
	r.mend = func(ctx context.Context) error { return r.mendIndex(ctx, entries) }
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // there is no store yet
		} else if err != nil {
			return err
		}
		to := int64(r.choice.Amount * float64(info.Size()))
		r.note("%s is cut to %d bytes", path, to)
		if err := os.Truncate(path, to); err != nil {
			return err
		}
	}
	return nil
}

// mendIndex wants cryo to read a store whose index was damaged, and to remove nothing from it that a snapshot may need. The names that are lost of those that worlds begin with, as the index had
// them, are given again.
func (r *round) mendIndex(ctx context.Context, entries map[string]ocispec.Descriptor) error {
	for _, words := range [][]string{{"ls"}, {"prune"}} {
		if done := r.host.Cryo(ctx, words...); done.Code != exitOK {
			r.violate("cryo %s fails where index.json is damaged: exit code %d: %s", words[0], done.Code, done.Stderr)
			return nil
		}
	}
	if r.op.name == "rm" && r.result.Code == exitOK { // it was to be removed
		delete(entries, r.golden())
	}
	if golden, ok := entries[r.golden()]; ok {
		if verified := r.host.Cryo(ctx, "verify", "--allow", "all", golden.Digest.String()); verified.Code != exitOK {
			r.violate("blobs were removed of a snapshot whose name was lost: %s", verified.Stderr)
			return nil
		}
		for _, ref := range r.world.golden { // what is there is not fetched again
			if _, ok := entries[ref]; !ok {
				continue
			}
			if err := r.host.Cryo(ctx, "pull", ref, "--plain-http").Err(); err != nil {
				return fmt.Errorf("name a snapshot again: %w", err)
			}
		}
	}
	list := r.host.Cryo(ctx, "ls", "--json")
	for _, name := range lostName.FindAllString(list.Stdout, -1) {
		if err := r.host.Cryo(ctx, "rm", name).Err(); err != nil {
			return err
		}
	}
	return list.Err()
}

// lostName is the name of a snapshot whose own is lost.
var lostName = regexp.MustCompile(`localhost/name-lost:[0-9a-z]+`)

// entries are those of the host's index, by the names of snapshots.
func (r *round) entries() (map[string]ocispec.Descriptor, error) {
	content, err := os.ReadFile(filepath.Join(r.host.CryoRoot(), "store/index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var i ocispec.Index
	if err := json.Unmarshal(content, &i); err != nil {
		return nil, err
	}
	all := map[string]ocispec.Descriptor{}
	for _, d := range i.Manifests {
		all[d.Annotations[ocispec.AnnotationRefName]] = d
	}
	return all, nil
}

// damageManifest removes a manifest, or cuts it short.
func (r *round) damageManifest() error {
	entries, err := r.entries()
	golden, ok := entries[r.golden()]
	if err != nil || !ok {
		return err
	}
	manifest := filepath.Join(r.host.CryoRoot(), "store/blobs/sha256", golden.Digest.Encoded())
	aside := filepath.Join(r.host.Dir, golden.Digest.Encoded())
	data, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	r.mend = func(ctx context.Context) error {
		pruned := r.host.Cryo(ctx, "prune")
		if pruned.Code != exitOK {
			r.violate("cryo prune fails where a manifest is damaged: exit code %d: %s", pruned.Code, pruned.Stderr)
		}
		err := errors.Join(os.WriteFile(manifest, data, 0o600), os.Remove(aside))
		if verified := r.host.Cryo(ctx, "verify", "--allow", "all", r.golden()); verified.Code != exitOK {
			r.violate("blobs were removed of a snapshot whose manifest was damaged: %s", verified.Stderr)
		}
		return err
	}
	if err := os.WriteFile(aside, data, 0o600); err != nil {
		return err
	}
	if r.choice.Pick%2 == 0 {
		r.note("%s is gone", manifest)
		return os.Remove(manifest)
	}
	r.note("%s is cut short", manifest)
	return os.Truncate(manifest, int64(r.choice.Amount*float64(len(data))))
}

// besideRestore restores with ctr while the container runs whose cgroup the snapshot names: that is refused, and the container runs on.
func besideRestore() *operation {
	return &operation{
		name: "ctr-restore-beside", stock: true, about: "ctr containers restore --live --rw beside the container that the snapshot was taken of", fresh: true,
		processes: []string{"ctr", "criu"}, events: []string{"bundle", "state"}, fills: []string{"run"},
		prepare: func(ctx context.Context, r *round) error { return r.world.start(ctx, "") },
		words: func(r *round) []string {
			return []string{"ctr", "containers", "restore", "--live", "--rw", r.id, stockImage}
		},
		judge: func(ctx context.Context, r *round) (verdict, error) {
			if r.world.life == "" { // given again, when the other has been removed
				state, err := r.look(ctx, r.host, r.id, "")
				return judgeStock(r.seen(state), true), err
			}
			v := verdict{outcome: refused}
			state, err := r.glance(ctx, r.host, subject, r.world.life)
			switch s := r.seen(state); {
			case state != runs && s.harmedOne("host"): // all that ran on it has ended
				v.outcome = gone
			case state != runs:
				v.violate("a restore beside a container has made it %s", state)
			}
			return v, err
		},
		ready: func(ctx context.Context, r *round) error {
			return errors.Join(removeRestored(ctx, r), r.world.remove(ctx, r.host, subject))
		},
		clean: removeRestored,
	}
}
