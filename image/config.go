package image

import (
	"encoding/json"
	"time"

	"github.com/opencontainers/go-digest"
)

// Media types of a snapshot. FORMAT.md is normative.
const (
	// ArtifactType is the artifactType of a snapshot's manifest.
	ArtifactType = "application/vnd.cryo.snapshot.v1"
	// MediaTypeConfig is the config blob: [Config] as JSON.
	MediaTypeConfig = "application/vnd.cryo.snapshot.config.v1+json"
	// MediaTypeIndex is the memory map, see package image/format.
	MediaTypeIndex = "application/vnd.cryo.snapshot.index.v1+zstd"
	// MediaTypeCRIU holds CRIU's images, everything but pages.
	MediaTypeCRIU = "application/vnd.cryo.snapshot.criu.v1.tar+zstd"
	// MediaTypeRootFS is the difference between the container's rootfs and its base image.
	MediaTypeRootFS = "application/vnd.cryo.snapshot.rootfs.v1.tar+zstd"
	// MediaTypeSegment holds memory, frame after frame.
	MediaTypeSegment = "application/vnd.cryo.snapshot.segment.v1"
)

// ConfigVersion is the version of the config that this package writes; it reads no other.
const ConfigVersion = 1

// Config is a snapshot's config blob: where the snapshot comes from and what a host must have to restore it.
type Config struct {
	// SchemaVersion, which is 2, and MediaType come first, as in OCI's manifests. Spegel 0.7.4 serves no JSON without them but images' configurations. Missing in snapshots of earlier versions.
	SchemaVersion int    `json:"schemaVersion,omitempty"`
	MediaType     string `json:"mediaType,omitempty"`

	Version   int       `json:"version"`
	Created   time.Time `json:"created"`
	Container Container `json:"container"`
	// Spec is the OCI runtime specification the container was created with, before any injection by the host.
	Spec json.RawMessage `json:"spec"`
	// Host is the host the snapshot was taken on; package runtime/host compares it with another.
	Host    Host    `json:"host"`
	Process Options `json:"options"`
	Memory  Memory  `json:"memory"`
	// Parent is there if the snapshot was taken as the increment of another.
	Parent *ParentRecord `json:"parent,omitempty"`
	// Processes are the container's processes at the freeze, init first.
	Processes []Process `json:"processes,omitempty"`
	// GPU is there if the container had GPUs.
	GPU     *GPU    `json:"gpu,omitempty"`
	Timings Timings `json:"timings"`
}

// Container names the container a snapshot was taken of.
type Container struct {
	ID          string            `json:"id"`
	Namespace   string            `json:"namespace,omitempty"`
	Runtime     string            `json:"runtime"`
	Snapshotter string            `json:"snapshotter,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Image is the reference of the base image, ImageDigest the digest it had (of what the name pointed at: an index or a manifest).
	Image       string        `json:"image,omitempty"`
	ImageDigest digest.Digest `json:"imageDigest,omitempty"`
	// ChainID is that of the base image's layers for the platform of the container, which its root file system stood on; empty if unknown. Source: OCI
	// image specification, config.md, "Layer ChainID".
	ChainID digest.Digest `json:"chainID,omitempty"`
	// Addresses are those of the container's network namespace but its loopback addresses, as 192.0.2.1/24. They inform the restored program.
	Addresses []string `json:"addresses,omitempty"`
}

// Host says what a host is, as far as a restored process can tell.
type Host struct {
	OS            string   `json:"os"`
	Architecture  string   `json:"architecture"`
	Kernel        string   `json:"kernel"`
	PageSize      int      `json:"pageSize"`
	CPUModel      string   `json:"cpuModel,omitempty"`
	CPUFeatures   []string `json:"cpuFeatures,omitempty"`
	XSaveSize     uint32   `json:"xsaveSize,omitempty"` // bytes, CPUID leaf 0xD; 0 where there is none
	CgroupVersion int      `json:"cgroupVersion"`       // 1 (also hybrid) or 2
	CRIU          string   `json:"criu"`
	Runc          string   `json:"runc,omitempty"`
	LSM           string   `json:"lsm,omitempty"` // apparmor, selinux or empty
	// Features are kernel features CRIU needs on restore for what the snapshot holds, by CRIU's own names.
	Features []string `json:"features,omitempty"`
}

// Options are the choices at the dump that a restore must repeat.
type Options struct {
	TCPEstablished      bool `json:"tcpEstablished,omitempty"`
	FileLocks           bool `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool `json:"externalUnixSockets,omitempty"`
	Terminal            bool `json:"terminal,omitempty"`
}

// Memory totals, in bytes.
type Memory struct {
	Total  int64 `json:"total"`  // dumped pages and device memory that was handed over, pages of zeros included
	Zero   int64 `json:"zero"`   // pages of zeros, left out
	Stored int64 `json:"stored"` // segments as stored
	// Device is what of the total is device memory.
	Device int64 `json:"device,omitempty"`
	// Unused is what of it is in no frame: what the parent needs of the segments it shares, and this snapshot does not.
	Unused int64 `json:"unused,omitempty"`
}

// ParentRecord says of which snapshot another is the increment. It informs: all that is needed is in the snapshot itself.
type ParentRecord struct {
	Digest digest.Digest `json:"digest"` // of the manifest
	// Segments is how many of the first segments are the parent's too. Only they may have bytes that no frame uses.
	Segments int `json:"segments"`
}

// Process is one process of the container.
type Process struct {
	PID     int    `json:"pid"` // inside the container
	Command string `json:"command"`
	Threads int    `json:"threads"`
	Memory  int64  `json:"memory"` // dumped pages in bytes
}

// Timings of the checkpoint, in seconds.
type Timings struct {
	Freeze float64 `json:"freeze"` // container stood still
	Dump   float64 `json:"dump"`   // of which CRIU
	RootFS float64 `json:"rootfs"` // of which capture of the writable layer
	Pack   float64 `json:"pack"`   // afterwards
}

// Progress is told how far a long operation is: bytes done of total (0: not known), what is a short constant
// such as "pack", "push" or "pull". It may be called from several goroutines at once and must be fast. Nil: it is not reported.
type Progress func(what string, done, total int64)
