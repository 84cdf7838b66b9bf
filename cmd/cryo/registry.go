package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/registry"
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
	f.StringVarP(&r.user, "user", "u", "", "USER[:PASSWORD] for the registry (default: Docker's credential store)")
	f.BoolVar(&r.password, "password-stdin", false, "read the registry's password from standard input")
	f.IntVar(&r.options.Concurrency, "concurrency", 0, "blobs transferred at once (default 4; for memory half the number of cores, 4 to 8)")
}

// resolve gives the options, the password included.
func (r *registryFlags) resolve(a *app) (registry.Options, error) {
	o := r.options
	o.Progress = a.report()
	o.Username, o.Password, _ = strings.Cut(r.user, ":")
	if o.Concurrency < 0 || o.Concurrency > 64 {
		return o, &usageError{command: "cryo", problem: fmt.Sprintf("--concurrency %d is not between 1 and 64", o.Concurrency)}
	}
	if r.password {
		if o.Username == "" || o.Password != "" {
			return o, &usageError{command: "cryo", problem: "--password-stdin needs --user USER without a password"}
		}
		const limit = 64 << 10
		data, err := io.ReadAll(io.LimitReader(os.Stdin, limit))
		if err != nil {
			return o, fmt.Errorf("read the password: %w", err)
		}
		o.Password = strings.TrimRight(string(data), "\r\n")
	}
	return o, nil
}
