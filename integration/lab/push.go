package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
)

// Layer is an image's layer with these files.
func Layer(files []File) ([]byte, error) {
	var layer bytes.Buffer
	err := writeTar(&layer, files)
	return layer.Bytes(), err
}

// Push puts an image into a registry that speaks with everybody, and gives its reference. Name is a repository, a colon and a tag.
func (r *Registry) Push(ctx context.Context, name string, config ocispec.ImageConfig, layers ...[]byte) (string, error) {
	repository, err := r.repository(name)
	if err != nil {
		return "", err
	}
	image := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, Config: config, RootFS: ocispec.RootFS{Type: "layers"}}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, layer := range layers {
		d, err := pushBlob(ctx, repository, ocispec.MediaTypeImageLayer, layer)
		if err != nil {
			return "", err
		}
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, d.Digest)
		manifest.Layers = append(manifest.Layers, d)
	}
	encoded, err := json.Marshal(image)
	if err != nil {
		return "", fmt.Errorf("encode image configuration: %w", err)
	}
	if manifest.Config, err = pushBlob(ctx, repository, ocispec.MediaTypeImageConfig, encoded); err != nil {
		return "", err
	}
	if encoded, err = json.Marshal(manifest); err != nil {
		return "", fmt.Errorf("encode image manifest: %w", err)
	}
	d := ocispec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(encoded), Size: int64(len(encoded))}
	if err := repository.Manifests().PushReference(ctx, d, bytes.NewReader(encoded), repository.Reference.Reference); err != nil {
		return "", fmt.Errorf("push %s: %w", name, err)
	}
	return r.Reference(name), nil
}

// PushImage does the same with an image of [Lab.Image]'s kind.
func (r *Registry) PushImage(ctx context.Context, name string, image Image) (string, error) {
	repository, err := r.repository(name)
	if err != nil {
		return "", err
	}
	archive, err := oci.NewFromTar(ctx, image.Path)
	if err != nil {
		return "", fmt.Errorf("read image: %w", err)
	}
	if _, err := oras.Copy(ctx, archive, image.Digest.String(), repository, repository.Reference.Reference, oras.DefaultCopyOptions); err != nil {
		return "", fmt.Errorf("push %s: %w", name, err)
	}
	return r.Reference(name), nil
}

func (r *Registry) repository(name string) (*remote.Repository, error) {
	if r.options.Auth != Anonymous {
		return nil, fmt.Errorf("push %s to registry %s: %w", name, r.Name, errors.ErrUnsupported)
	}
	repository, err := remote.NewRepository(r.Reference(name))
	if err != nil {
		return nil, fmt.Errorf("push %s: %w", name, err)
	}
	repository.PlainHTTP = !r.options.TLS
	if r.options.TLS {
		repository.Client = &http.Client{Transport: &http.Transport{TLSClientConfig: trust(r.CA), DisableKeepAlives: true}}
	}
	return repository, nil
}

func pushBlob(ctx context.Context, repository *remote.Repository, mediaType string, content []byte) (ocispec.Descriptor, error) {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	err := repository.Blobs().Push(ctx, d, bytes.NewReader(content))
	if err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return d, fmt.Errorf("push blob: %w", err)
	}
	return d, nil
}
