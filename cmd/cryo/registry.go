package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// registryFlags say how to reach a registry; names are those of ctr.
type registryFlags struct {
	options  registry.Options
	user     string
	password bool
}

func (r *registryFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&r.options.PlainHTTP, "plain-http", false, "speak HTTP without TLS")
	f.BoolVarP(&r.options.Insecure, "skip-verify", "k", false, "accept any certificate of the registry")
	f.StringVar(&r.options.CAFile, "tlscacert", "", "PEM file with certificate authorities to trust for the registry")
	f.StringVarP(&r.user, "user", "u", "", "USER[:PASSWORD] for the registry; a password that is left out is asked for (default: Docker's credential store)")
	f.BoolVar(&r.password, "password-stdin", false, "read the registry's password from standard input")
	f.IntVar(&r.options.Concurrency, "concurrency", 0, "blobs transferred at once (default half the number of cores, 4 to 8)")
}

// resolve returns the options. It reads the password from standard input, or asks for it.
func (r *registryFlags) resolve(ctx context.Context, a *app) (registry.Options, error) {
	o := r.options
	o.Progress = a.report()
	if a.debug {
		o.Trace = func(r registry.Request) { restore.TraceRequest(ctx, r) }
	}
	if o.Concurrency < 0 || o.Concurrency > 64 {
		return o, misused("cryo", "--concurrency %d is not between 1 and 64", o.Concurrency)
	}
	c, err := a.config()
	if err != nil {
		return o, err
	}
	o.Hosts = c.Registry.Hosts
	o.Username, o.Password, err = r.login(ctx, a)
	return o, err
}

// login returns user and password; none where nothing is said of them.
func (r *registryFlags) login(ctx context.Context, a *app) (user, password string, err error) {
	user, password, _ = strings.Cut(r.user, ":")
	switch {
	case r.password:
		if user == "" || password != "" {
			return "", "", misused("cryo", "--password-stdin needs --user USER without a password")
		}
		const limit = 64 << 10
		data, err := io.ReadAll(io.LimitReader(os.Stdin, limit))
		if err != nil {
			return "", "", fmt.Errorf("read the password: %w", err)
		}
		password = strings.TrimRight(string(data), "\r\n")
	case user != "" && password == "":
		if password, err = a.askPassword(ctx, "user "+user); errors.Is(err, errNoTerminal) {
			return "", "", failure.New(errdefs.ErrInvalidArgument, "give the password on standard input with --password-stdin, or leave --user out after docker login",
				"--user %s has no password, and %v", user, errNoTerminal)
		}
		if err != nil {
			return "", "", err
		}
	}
	if user != "" && password == "" {
		return "", "", misused("cryo", "the password of user %s is empty", user)
	}
	return user, password, nil
}

// passedOn returns the options by which another process of cryo's reaches the registry, on this host or on that of a group's member.
func passedOn(o registry.Options) worker.Registry {
	return worker.Registry{PlainHTTP: o.PlainHTTP, Insecure: o.Insecure, CAFile: o.CAFile, Username: o.Username, Password: o.Password, Concurrency: o.Concurrency}
}
