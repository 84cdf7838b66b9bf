package restore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/runc"
)

// A pool is a number of containers of one snapshot that are restored before they are wanted. Each member is a container in containerd's store whose task stands frozen before its first instruction (shim/pool.go).
// cryo restore takes one; no process of cryo's waits meanwhile.
//
// A pool is a directory below pools in cryo's root: pool.json is what is wanted, and members has a file for each member. A command that makes, takes or removes a member has locked its file. What the
// file of a member says, and the state of its task, decide what becomes of it if that command is killed (Pool.settle).

// MaxPaused bounds the members of a pool.
const MaxPaused = 100

// Pool is a pool as it is wanted.
type Pool struct {
	dir string

	Reference string        `json:"reference"` // normalised
	Digest    digest.Digest `json:"digest"`    // of the snapshot that the store had by this name
	Count     int           `json:"count"`     // of members that are wanted; 0: it is being removed
	Address   string        `json:"address"`   // of containerd's socket
	Namespace string        `json:"namespace"` // of containerd
}

// Member is a container of a pool, as its file says.
type Member struct {
	ID      string        `json:"id"` // of the container
	Digest  digest.Digest `json:"digest"`
	Memory  int64         `json:"memory"`  // bytes
	PID     int           `json:"pid"`     // of its first process; 0: it is being made
	Started uint64        `json:"started"` // of that, as [runc.Started] returns it
	Image   string        `json:"image"`   // its base image
	Named   bool          `json:"named"`   // nerdctl shows it by a label, which may have another name
	Taken   bool          `json:"taken"`   // a command takes it: if its task does not stand still, it was handed out
	Created time.Time     `json:"created"`
	Env     []string      `json:"env,omitempty"` // of one that is being taken
}

// stands reports whether the member's first process is there. The shim has the last word.
func (m Member) stands() bool {
	started, err := runc.Started(m.PID)
	return m.PID != 0 && err == nil && started == m.Started && !runc.Doomed(m.PID)
}

const poolFile = "pool.json"

func poolsDir(root string) string { return filepath.Join(root, "pools") }

// poolDir is the directory of the pool of a snapshot for a namespace of containerd.
func poolDir(root, address, namespace, ref string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{address, namespace, ref}, "\x00")))
	return filepath.Join(poolsDir(root), hex.EncodeToString(sum[:8]))
}

// readPool reads the pool in a directory; nil: there is none.
func readPool(dir string) (*Pool, error) {
	p := &Pool{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, poolFile))
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the pool in %s: %w", dir, err)
	}
	return p, nil
}

// findPool returns the pool of the snapshot ref; nil: there is none.
func findPool(root, address, namespace, ref string) (*Pool, error) {
	full, err := store.Normalize(ref)
	if err != nil {
		return nil, nil // a file, which no pool is of
	}
	return readPool(poolDir(root, address, namespace, full))
}

// Pools returns all pools of a store.
func Pools(root string) (all []*Pool, err error) {
	entries, err := os.ReadDir(poolsDir(root))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	for _, e := range entries {
		p, err := readPool(filepath.Join(poolsDir(root), e.Name()))
		if err != nil {
			return nil, err
		}
		if p != nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// write writes what is wanted.
func (p *Pool) write() error {
	data, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(p.membersDir(), 0o700)
	}
	if err == nil {
		err = store.ReplaceFile(filepath.Join(p.dir, poolFile), store.Bytes(data))
	}
	if err != nil {
		return fmt.Errorf("write the pool of %s: %w", store.Familiar(p.Reference), err)
	}
	return nil
}

func (p *Pool) membersDir() string { return filepath.Join(p.dir, "members") }

// Members returns the members by their files, the oldest first. Those that are being made or taken are among them.
func (p *Pool) Members() (all []Member, err error) {
	entries, err := os.ReadDir(p.membersDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the pool of %s: %w", store.Familiar(p.Reference), err)
	}
	for _, e := range entries {
		if m, err := readMember(filepath.Join(p.membersDir(), e.Name())); err == nil { // else it is gone meanwhile
			all = append(all, m)
		}
	}
	return all, nil
}

// readMember reads a member's file. One that is being written has only the name.
func readMember(path string) (m Member, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		m = Member{}
	}
	m.ID = filepath.Base(path)
	return m, nil
}

// seat is the file of a member, which this process has locked.
type seat struct {
	Member
	file *os.File
}

// sit locks the file of a member; nil: another process has, or the file is gone.
func (p *Pool) sit(id string) (*seat, error) {
	path := filepath.Join(p.membersDir(), id)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open a member of a pool: %w", err)
	}
	ok, err := store.TryLock(f, unix.LOCK_EX)
	if err != nil || !ok || !store.Still(f, path) {
		return nil, errors.Join(err, f.Close())
	}
	m, err := readMember(path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &seat{Member: m, file: f}, nil
}

// newSeat makes the file of a member that is about to be made.
func (p *Pool) newSeat(m Member) (*seat, error) {
	f, err := os.OpenFile(filepath.Join(p.membersDir(), m.ID), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a member of a pool: %w", err)
	}
	s := &seat{Member: m, file: f}
	if _, err := store.TryLock(f, unix.LOCK_EX); err != nil { // no process knows it yet
		return nil, errors.Join(err, s.remove())
	}
	if err := s.write(); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// write writes the member into its file, which stays the one that is locked.
func (s *seat) write() error {
	data, err := json.Marshal(s.Member)
	if err == nil {
		err = s.file.Truncate(0)
	}
	if err == nil {
		_, err = s.file.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("write a member of a pool: %w", err)
	}
	return nil
}

// leave unlocks the file.
func (s *seat) leave() { _ = s.file.Close() } // it was written before

// remove removes the file.
func (s *seat) remove() error { return errors.Join(os.Remove(s.file.Name()), s.file.Close()) }

// PoolState is what there is of a pool.
type PoolState struct {
	Wanted    int           `json:"wanted"`
	Ready     int           `json:"ready"`     // stand frozen
	Making    int           `json:"making"`    // are being made, or taken
	Memory    int64         `json:"memory"`    // bytes of all of them
	Namespace string        `json:"namespace"` // of containerd
	Members   []MemberState `json:"members"`   // those that are ready
}

// MemberState is a member that stands frozen.
type MemberState struct {
	Container string    `json:"container"`
	PID       int       `json:"pid"`
	Created   time.Time `json:"created"`
}

// State looks at the members.
func (p *Pool) State() (s PoolState, err error) {
	s = PoolState{Wanted: p.Count, Namespace: p.Namespace, Members: []MemberState{}}
	all, err := p.Members()
	if err != nil {
		return s, err
	}
	for _, m := range all {
		switch {
		case m.Taken, m.PID == 0:
			s.Making++
		case m.stands():
			s.Ready++
			s.Members = append(s.Members, MemberState{Container: m.ID, PID: m.PID, Created: m.Created})
		default:
			continue // it has ended, and takes no memory
		}
		s.Memory += m.Memory
	}
	return s, nil
}

// errReleased ends what fills a pool that is not wanted any more.
var errReleased = fmt.Errorf("the pool was released: %w", errdefs.ErrAborted)

// again reads once more what is wanted.
func (p *Pool) again() error {
	now, err := readPool(p.dir)
	switch {
	case err != nil:
		return err
	case now == nil || now.Count == 0:
		return errReleased
	}
	*p = *now
	return nil
}

// lockAt locks a file in the pool's directory. wait: until another process that has it locked has ended; else nil is returned then.
func (p *Pool) lockAt(ctx context.Context, name string, wait bool) (f *os.File, err error) {
	if f, err = os.OpenFile(filepath.Join(p.dir, name), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("lock the pool of %s: %w", store.Familiar(p.Reference), err)
	}
	ok := true
	if wait {
		err = store.Lock(ctx, f, unix.LOCK_EX)
	} else {
		ok, err = store.TryLock(f, unix.LOCK_EX)
	}
	if err != nil || !ok {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
