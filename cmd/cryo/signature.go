package main

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// requireSignature adds the flag that asks for signatures where the configuration does not.
func requireSignature(cmd *cobra.Command, require *bool) {
	cmd.Flags().BoolVar(require, "require-signature", false, "refuse the snapshot unless a key of [trust] in the configuration has signed it")
}

// judging reads the policy in the configuration.
func (a *app) judging(require bool) (*restore.Judging, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	return restore.NewJudging(c.Trust, config.Person, require)
}

// readKey reads a private key. Its password is in COSIGN_PASSWORD, as cosign has it, or asked for.
func (a *app) readKey(ctx context.Context, path string) (*signature.PrivateKey, error) {
	return signature.ReadPrivateKey(path, func() ([]byte, error) {
		if password, set := os.LookupEnv("COSIGN_PASSWORD"); set {
			return []byte(password), nil
		}
		password, err := a.askPassword(ctx, path)
		if errors.Is(err, errNoTerminal) {
			return nil, failure.New(errdefs.ErrInvalidArgument, "put the password into COSIGN_PASSWORD", "read key %s: it is encrypted, and there is no terminal to ask for its password", path)
		}
		return []byte(password), err
	})
}

// signerRows are the lines of cryo inspect about signatures.
func signerRows(signers []signature.Signer) [][]string {
	rows := [][]string{}
	for _, s := range signers {
		key, label := s.Key, ""
		if key == "" {
			key = "a key that is not named"
		}
		if len(rows) == 0 {
			label = "Signed by:"
		}
		switch {
		case s.Problem == signature.Damaged:
			key = "a damaged signature"
		case s.Problem == signature.UntrustedKey:
			key += ", as it says itself: no file of [trust] has this key"
		case s.Problem == signature.OtherDigest:
			key += " (" + s.File + "), but that is a signature of another snapshot"
		case s.Accepted:
			key += " (" + s.File + ")"
		default:
			key += " (" + s.File + "), which does not count for this repository"
		}
		rows = append(rows, []string{label, key})
	}
	if len(rows) == 0 {
		rows = append(rows, []string{"Signed by:", "nobody"})
	}
	return rows
}
