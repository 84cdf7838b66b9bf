// Package signature makes and checks signatures of snapshots, by keys from files, and decides which snapshots may be used.
//
// A signature is what cosign 3 makes with "cosign sign --key" and checks with "cosign verify --key": a Sigstore bundle, version 0.3, in a
// manifest whose subject is the snapshot's. The bundle has a DSSE envelope, in it an in-toto statement, which names the digest of the
// snapshot's manifest. There is neither a certificate nor a transparency log nor a time stamp: what counts is the key.
//
// Sources: https://github.com/sigstore/protobuf-specs (bundle), https://github.com/secure-systems-lab/dsse (envelope),
// https://github.com/in-toto/attestation (statement), cosign 3.1, pkg/oci/remote/write.go (manifest).
//
// A digest is signed, and no name: a snapshot keeps its signatures under another name and in another registry.
//
// # Names of registries
//
// This part compares the names of registries in references, HOST[:PORT]. One registry has several names, and whom a host trusts, what it allows, whose password it
// sends and how near an address is must not depend on the name that its author has chosen.
package signature
