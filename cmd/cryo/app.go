package main

import (
	"context"
	"io"
	"text/template"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/log"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

// app is what all subcommands share.
type app struct {
	stdout, stderr io.Writer
	progress       progress

	namespace, address string // of containerd
	root, configPath   string
	debug, json        bool
	showProgress       string             // as in progressAuto
	printed            bool               // the one JSON document
	format             *template.Template // what to print of it instead; nil: all
}

// config reads the configuration; flags and environment win over it.
func (a *app) config() (config.Config, error) {
	c, err := config.Load(a.configPath)
	if err != nil {
		return c, err
	}
	if a.root != "" {
		c.Root = a.root
	}
	return c, nil
}

// store opens the local store.
func (a *app) store() (*store.Store, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	return daemon.OpenStore(c, a.address)
}

// inStore is for commands that look into the local store, and do nothing else before.
func (a *app) inStore(do func(ctx context.Context, s *store.Store, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := a.store()
		if err != nil {
			return err
		}
		return do(cmd.Context(), s, args)
	}
}

// connect reaches containerd. The context returned carries the namespace.
func (a *app) connect(ctx context.Context) (context.Context, *containerd.Client, error) {
	c, err := a.config()
	if err != nil {
		return ctx, nil, err
	}
	return daemon.Connect(ctx, daemon.Options{
		Address: a.address, Namespace: a.namespace, Patience: time.Duration(c.Containerd.Patience) * time.Second, Trace: true,
	})
}

// closing closes what cannot fail in a way that matters to the user, and logs that for debugging.
func closing(ctx context.Context, what string, c io.Closer) {
	if err := c.Close(); err != nil {
		log.G(ctx).WithError(err).WithField("what", what).Debug("close")
	}
}
