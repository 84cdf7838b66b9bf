package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/save"
)

func newSign(a *app) *cobra.Command {
	var keyFile string
	var flags registryFlags
	cmd := &cobra.Command{
		Use:   "sign REF --key FILE",
		Short: "Sign a snapshot",
		Long: `sign signs the digest of the snapshot REF, which covers all of it, with a private key. Hosts can require that signature: see [trust] of
the configuration, and --require-signature of restore, pull and prewarm.

If the snapshot is in the local store, its signature is kept there, and cryo push sends it. Otherwise it is signed in its registry.

The signature is what cosign makes and checks (a Sigstore bundle as a referrer, no transparency log):

  cosign verify --key cosign.pub --insecure-ignore-tlog REPOSITORY@DIGEST

DIGEST is the snapshot's, which sign prints. In a registry, REF may stand for an index of the snapshot and an image (see cryo push).

The key is one of cosign generate-key-pair, whose password is in COSIGN_PASSWORD or asked for on a terminal, or an ECDSA or ed25519 key
in PEM form, made by

  openssl genpkey -algorithm ed25519 -out sign.pem
  openssl pkey -in sign.pem -pubout -out sign.pub

cosign 2.6 also needs --new-bundle-format and, without a network, --trusted-root with any root. With a key on the curve P-384 or P-521,
cosign verify needs --signature-digest-algorithm sha384 or sha512.

A key that has signed the snapshot already does not sign it again.`,
		Example: `  cryo sign registry.example.com/snapshots/app:warm --key cosign.key
  cryo sign app:warm --key sign.pem`,
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyFile == "" {
				return misused(cmd.CommandPath(), "missing --key FILE")
			}
			if registry.IsLocation(args[0]) {
				return misused(cmd.CommandPath(), "a file is not signed: sign the snapshot in the local store, and write the file with cryo push")
			}
			return a.sign(cmd.Context(), args[0], keyFile, &flags)
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file with the private key")
	flags.register(cmd)
	return cmd
}

func (a *app) sign(ctx context.Context, ref, keyFile string, flags *registryFlags) error {
	options, err := flags.resolve(ctx, a)
	if err != nil {
		return err
	}
	key, err := a.readKey(ctx, keyFile)
	if err != nil {
		return err
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	if ref, err = a.named(ctx, s, ref, ""); err != nil {
		return err
	}
	r, err := save.Sign(ctx, s, ref, key, options)
	if err != nil {
		return err
	}
	return a.print(r, func() error {
		verb := "signed"
		if r.Already {
			verb = "has signed already"
		}
		a.line("%s %s %s %s", r.Key, verb, ref, r.Digest)
		if r.Where == "store" {
			a.line("the signature is in the local store: cryo push sends it")
		}
		return nil
	})
}
