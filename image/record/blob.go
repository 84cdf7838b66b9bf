package record

import (
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is a small blob, such as a manifest, that is in memory.
type Blob struct {
	Descriptor ocispec.Descriptor
	Data       []byte
}

// BlobOf describes data.
func BlobOf(mediaType string, data []byte) Blob {
	return Blob{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}, data}
}
