package signature

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/format"
)

// What the envelope and the statement say of themselves.
const (
	payloadType   = "application/vnd.in-toto+json"
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://sigstore.dev/cosign/sign/v1"
)

// wire is a bundle as it is written.
// Source: https://github.com/sigstore/protobuf-specs/blob/v0.5.1/protos/sigstore_bundle.proto, as JSON.
type wire struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		PublicKey *struct {
			Hint string `json:"hint"`
		} `json:"publicKey,omitempty"`
	} `json:"verificationMaterial"`
	Envelope *envelope `json:"dsseEnvelope,omitempty"`
}

type envelope struct {
	Payload     []byte    `json:"payload"`
	PayloadType string    `json:"payloadType"`
	Signatures  []sigWire `json:"signatures"`
}

type sigWire struct {
	Sig []byte `json:"sig"`
}

// statement is the payload. Source: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     struct{}  `json:"predicate"`
}

type subject struct {
	Digest map[string]string `json:"digest"`
}

// encoded is what is signed. Source: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, PAE.
func (e *envelope) encoded() []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
}

// Sign makes a bundle that says that the key has signed the manifest with the digest d, which is a sha256.
func Sign(by *PrivateKey, d digest.Digest) ([]byte, error) {
	payload, err := json.Marshal(statement{
		Type:          statementType,
		Subject:       []subject{{Digest: map[string]string{d.Algorithm().String(): d.Encoded()}}},
		PredicateType: predicateType,
	})
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", d, err)
	}
	w := wire{MediaType: MediaType, Envelope: &envelope{Payload: payload, PayloadType: payloadType}}
	w.Material.PublicKey = &struct {
		Hint string `json:"hint"`
	}{by.Public.hint()}
	sig, err := by.sign(w.Envelope.encoded())
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", d, err)
	}
	w.Envelope.Signatures = []sigWire{{sig}}
	return json.Marshal(w)
}

// bundle is one that was read. Nothing that it says counts before its signature was verified.
type bundle struct {
	hint    string // of whose key it says that it is
	signed  []byte
	sig     []byte
	payload []byte
}

// parseBundle reads a bundle.
func parseBundle(data []byte) (*bundle, error) {
	var w wire
	if len(data) > MaxSize {
		return nil, damagedf("it has more than %d bytes", MaxSize)
	}
	if err := format.SmallJSON.Unmarshal(data, &w); err != nil {
		return nil, damagedf("read it: %v", err)
	}
	switch {
	case w.MediaType != MediaType:
		return nil, damagedf("it is of another kind than %s", MediaType)
	case w.Envelope == nil:
		return nil, damagedf("it has no DSSE envelope")
	case len(w.Envelope.Signatures) != 1:
		return nil, damagedf("it has %d signatures and not one", len(w.Envelope.Signatures))
	case w.Envelope.PayloadType != payloadType:
		return nil, damagedf("its envelope holds something else than %s", payloadType)
	}
	b := &bundle{signed: w.Envelope.encoded(), sig: w.Envelope.Signatures[0].Sig, payload: w.Envelope.Payload}
	if w.Material.PublicKey != nil {
		b.hint = w.Material.PublicKey.Hint
	}
	return b, nil
}

// digests are those of what is signed, which must have been verified; signature is false where it says something else of them.
func (b *bundle) digests() (all []digest.Digest, signature bool, err error) {
	var s struct {
		Type          string    `json:"_type"`
		Subject       []subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
	}
	if err := format.SmallJSON.Unmarshal(b.payload, &s); err != nil {
		return nil, false, damagedf("read its statement: %v", err)
	}
	if s.Type != statementType {
		return nil, false, damagedf("its statement is of another kind than %s", statementType)
	}
	for _, subject := range s.Subject {
		if sum, ok := subject.Digest[digest.SHA256.String()]; ok {
			all = append(all, digest.NewDigestFromEncoded(digest.SHA256, sum))
		}
	}
	return all, s.PredicateType == predicateType, nil
}
