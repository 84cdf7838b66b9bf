package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
)

// warmed describes a prewarmed snapshot.
type warmed struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Memory    int64     `json:"memory"` // bytes
	Disk      int64     `json:"disk"`   // bytes that were fetched for it
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`            // last
	Stale     bool      `json:"stale,omitempty"` // the store has another snapshot, or none, by this name
}

func warmOf(i warm.Info) warmed {
	return warmed{Reference: i.Reference, Digest: i.Digest.String(), Memory: i.Memory, Disk: i.Disk, Created: i.Created, Used: i.Used}
}

func newPrewarmList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List prewarmed snapshots, the least recently used first",
		Example: `  cryo prewarm ls
  cryo prewarm ls --json | jq 'map(.memory) | add'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			found, err := warm.New(s.Root()).List()
			if err != nil {
				return err
			}
			all := []warmed{}
			for _, i := range found {
				w := warmOf(i)
				desc, err := s.Resolve(cmd.Context(), i.Reference)
				w.Stale = err != nil || desc.Digest != i.Digest
				all = append(all, w)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"REFERENCE", "DIGEST", "MEMORY", "USED", ""}}
			for _, w := range all {
				note := ""
				if w.Stale {
					note = "the store has no such snapshot by this name"
				}
				rows = append(rows, []string{store.Familiar(w.Reference), short(w.Digest), size(w.Memory), age(w.Used), note})
			}
			return a.table(rows...)
		},
	}
}
