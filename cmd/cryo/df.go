package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/size"
)

// diskUsage is what takes space, in bytes.
type diskUsage struct {
	Snapshots []snapshotUsage `json:"snapshots"`
	store.Usage
	Free int64 `json:"free"` // under the root
}

type snapshotUsage struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`   // bytes of all blobs
	Own       int64  `json:"own"`    // of which no other snapshot has
	Shared    int64  `json:"shared"` // the others
}

func newDiskUsage(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "df",
		Short: "Show what takes space in the local store",
		Long: `df shows how much space snapshots take in the local store. OWN is what cryo rm of a snapshot frees; SHARED is
what other snapshots have too. Below are blobs that no snapshot needs, interrupted pulls (cryo prune removes
both), and what running commands work on.`,
		Example:           "  cryo df",
		Args:              exactly(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			u, err := a.diskUsage(cmd.Context(), s)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(u)
			}
			return a.printDiskUsage(u)
		},
	}
}

func (a *app) diskUsage(ctx context.Context, s *store.Store) (u diskUsage, err error) {
	used, err := s.Usage(ctx)
	if err != nil {
		return u, err
	}
	u = diskUsage{Snapshots: []snapshotUsage{}, Usage: used}
	for _, n := range used.Snapshots {
		u.Snapshots = append(u.Snapshots, snapshotUsage{Reference: n.Ref, Digest: n.Descriptor.Digest.String(), Size: n.Bytes, Own: n.Own, Shared: n.Bytes - n.Own})
	}
	u.Free, err = free(s.Root())
	return u, err
}

// free gives the bytes that are free on the file system of dir.
func free(dir string) (int64, error) {
	var at unix.Statfs_t
	if err := unix.Statfs(dir, &at); err != nil {
		return 0, fmt.Errorf("look for free space under %s: %w", dir, err)
	}
	return int64(at.Bavail) * at.Bsize, nil
}

func (a *app) printDiskUsage(u diskUsage) error {
	rows := [][]string{{"REFERENCE", "DIGEST", "SIZE", "OWN", "SHARED"}}
	for _, n := range u.Snapshots {
		rows = append(rows, []string{store.Familiar(n.Reference), short(n.Digest), size.Of(n.Size), size.Of(n.Own), size.Of(n.Shared)})
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	a.line("")
	return a.table(
		[]string{"Snapshots:", size.Of(u.Blobs.Bytes)},
		[]string{"Not needed by any:", size.Of(u.Unneeded.Bytes)},
		[]string{"Interrupted pulls:", size.Of(u.Partial.Bytes)},
		[]string{"Running commands:", size.Of(u.Working.Bytes)},
		[]string{"Free:", size.Of(u.Free)},
	)
}
