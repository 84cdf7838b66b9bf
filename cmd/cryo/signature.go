package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
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
	return restore.NewJudging(c.Trust, require)
}

// noPasswordError says that nobody gives the password of a key. Its kind is InvalidArgument.
type noPasswordError struct{ path string }

func (e *noPasswordError) Error() string {
	return fmt.Sprintf("read key %s: it is encrypted, and there is no terminal to ask for its password", e.path)
}

func (e *noPasswordError) Hint() string { return "put the password into COSIGN_PASSWORD" }

func (e *noPasswordError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// readKey reads a private key. Its password is in COSIGN_PASSWORD, as cosign has it, or asked for.
func (a *app) readKey(ctx context.Context, path string) (*signature.PrivateKey, error) {
	return signature.ReadPrivateKey(path, func() ([]byte, error) {
		if password, set := os.LookupEnv("COSIGN_PASSWORD"); set {
			return []byte(password), nil
		}
		password, err := a.askPassword(ctx, path)
		if errors.Is(err, errNoTerminal) {
			return nil, &noPasswordError{path}
		}
		return []byte(password), err
	})
}

// signWith gives what signs with a key, unless that has signed the subject before.
func signWith(key *signature.PrivateKey, already *bool) func(ocispec.Descriptor, []signature.Attached) ([]signature.Attached, error) {
	return func(subject ocispec.Descriptor, have []signature.Attached) ([]signature.Attached, error) {
		if *already = key.Public.SignedBy(subject.Digest, have); *already {
			return nil, nil
		}
		bundle, err := signature.Sign(key, subject.Digest)
		if err != nil {
			return nil, err
		}
		made, err := signature.Attach(subject, bundle, time.Now())
		return []signature.Attached{made}, err
	}
}

// signLocal signs a snapshot of the local store.
func signLocal(ctx context.Context, s *store.Store, subject ocispec.Descriptor, key *signature.PrivateKey) (already bool, err error) {
	op, err := s.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer closing(ctx, "operation", op)
	have, err := s.Signatures(ctx, subject.Digest)
	if err != nil {
		return false, err
	}
	made, err := signWith(key, &already)(subject, have)
	if err != nil {
		return already, err
	}
	return already, s.Attach(ctx, made)
}

// signers says who has signed a snapshot.
func (a *app) signers(l *looked) ([]signature.Signer, error) {
	j, err := a.judging(false)
	if err != nil {
		return nil, err
	}
	return j.Policy.Signers(l.names, l.desc.Digest, l.signed), nil
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
