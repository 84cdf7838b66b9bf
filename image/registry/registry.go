package registry

import (
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/signature"
)

// Options say how to reach a registry. The zero value uses TLS with the system's and Docker's certificates and Docker's
// credential store; registries on loopback addresses that speak no TLS are reached over plain HTTP.
type Options struct {
	// PlainHTTP speaks HTTP without TLS.
	PlainHTTP bool
	// Insecure accepts any certificate.
	Insecure bool
	// CAFile is a PEM file of certificate authorities to trust beside those of the system and of /etc/docker/certs.d.
	CAFile string
	// Username and Password take the place of Docker's credential store.
	Username, Password string
	// DockerConfig is a file in the form of Docker's config.json that takes the place of Docker's own; empty: none does.
	DockerConfig string
	// Concurrency is how many blobs are under way at once; 0 is half as many as there are cores, 4 to 8.
	Concurrency int
	// Progress is told "push" or "pull" and bytes, those included that were there already.
	Progress image.Progress
	// Counts, unless nil, are added to.
	Counts *Counts
	// Judge decides by its signatures whether a snapshot is pulled; nil: all are, and without signatures.
	Judge signature.Judge
	// Repair has what the store has of the snapshot verified, and fetched again where it is damaged. That is done in any case where damage was found before
	// ([store.Store.Suspect]).
	Repair bool
	// RootFS is asked for a snapshot's rootfs difference, which the caller has no need of where it gives a source: the difference is taken from there last of all, and
	// from the registry only if that does not have it. nil: the difference is fetched with all that is small.
	RootFS func(d ocispec.Descriptor) image.Fetcher
	// Patient asks a registry that has never answered as often as one that has: no user waits who may have mistyped its name.
	Patient bool

	// Hosts are directories, as PATH lists them, with containerd's host configuration (HOST/hosts.toml); empty: none. What is read comes by the mirrors that it names, and by the
	// registry where they fail. Its certificates and headers of the registry itself count for pushes, too.
	Hosts string

	// NamedBy is the reference of the snapshot that names what is fetched from another registry than its own; empty: the user does. A snapshot may name any host: it may
	// be no nearer to this one than the snapshot's registry, and is spoken to by TLS only, since stored passwords go there.
	NamedBy string

	// Trace, unless nil, is told of each request, also of those that are repeated.
	Trace func(Request)

	timing timing // tests have no time to wait
	certs  string // in place of /etc/docker/certs.d
}

// Request is a request to a registry, and what came of it.
type Request struct {
	Method, URL string // without its query, which may hold a signature
	Status      int    // of the answer; 0: none came
	Took        time.Duration
	Err         error // why none came
}

// concurrency is how many blobs are under way at once: what comes, or is sent, keeps a core busy with each, here or in the registry.
func (o Options) concurrency() int {
	if o.Concurrency > 0 {
		return o.Concurrency
	}
	return min(max(4, image.HalfCores(image.AllCores())), 8)
}
