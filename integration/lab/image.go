package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImageName is the base image's name as imported; a copy in a registry has the registry's.
const ImageName = "cryo.test/base:1"

// GPUImageName is the name of the image for containers with GPUs.
const GPUImageName = "cryo.test/gpu:1"

// Image is made without any network. The lab's base image is a static busybox and the workload program, nothing else.
type Image struct {
	Path   string        // OCI archive
	Digest digest.Digest // of the manifest
}

// Import loads the base image into the host's containerd, as [ImageName], and unpacks it.
func (h *Host) Import(ctx context.Context) error {
	return h.Ctr(ctx, "images", "import", "--snapshotter", "overlayfs", h.lab.image.Path).Err()
}

// ImportGPU imports the image for containers with GPUs, as [GPUImageName]: fakeapp of integration/fakecuda and what it needs but
// for the driver, nothing else.
func (h *Host) ImportGPU(ctx context.Context) error {
	files, err := h.lab.GPUFiles()
	if err != nil {
		return err
	}
	archive := filepath.Join(h.Dir, "gpu-image.tar")
	if _, err := writeLayout(archive, GPUImageName, []string{"/fake/fakeapp"}, files, nil); err != nil {
		return err
	}
	return h.Ctr(ctx, "images", "import", "--snapshotter", "overlayfs", archive).Err()
}

// ImportLabelled imports an image with labels, named ref, of busybox and workload.
func (h *Host) ImportLabelled(ctx context.Context, ref string, labels map[string]string) error {
	archive := filepath.Join(h.Dir, "labelled.tar")
	if _, err := writeImage(archive, h.lab.Tool("workload"), "", ref, []string{"workload", "count"}, labels); err != nil {
		return err
	}
	return h.Ctr(ctx, "images", "import", "--snapshotter", "overlayfs", archive).Err()
}

// ImportPrograms imports an image, named ref, of programs of this machine, the libraries they need, and busybox. The programs' names in the image are the
// keys, their paths on this machine the values.
func (h *Host) ImportPrograms(ctx context.Context, ref string, command []string, programs map[string]string) error {
	dir := filepath.Join(h.Dir, "programs")
	for name, source := range programs {
		libraries, err := exec.CommandContext(ctx, "ldd", source).Output()
		if err != nil {
			return &MissingError{"no " + source, "run: make deps"}
		}
		copies := map[string]string{"/bin/" + name: source}
		for _, library := range paths.FindAllString(string(libraries), -1) {
			copies[library] = library
		}
		for to, from := range copies {
			if err := copyFile(filepath.Join(dir, to), from); err != nil {
				return fmt.Errorf("read the programs of an image: %w", err)
			}
		}
	}
	archive := filepath.Join(h.Dir, "programs.tar")
	if _, err := writeImage(archive, h.lab.Tool("workload"), dir, ref, command, nil); err != nil {
		return err
	}
	return h.Ctr(ctx, "images", "import", "--snapshotter", "overlayfs", archive).Err()
}

// paths finds the paths in what ldd prints.
var paths = regexp.MustCompile(`/\S+`)

func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// Seed pushes an image of the host to a registry and gives its reference there, by which the other hosts, which have not
// imported it, can pull it: that of [ImageName] is "base:1". The host gets the image under that name too.
func (h *Host) Seed(ctx context.Context, r *Registry, image string) (string, error) {
	ref := r.Reference(path.Base(image))
	for _, args := range [][]string{
		{"images", "tag", "--force", image, ref},
		append([]string{"images", "push"}, append(r.CtrFlags(Password), ref)...),
	} {
		if result := h.Ctr(ctx, args...); result.Err() != nil {
			return "", result.Err()
		}
	}
	return ref, nil
}

// CtrFlags are what "ctr images push" and "pull" need for this registry, with [Password] or a wrong one.
func (r *Registry) CtrFlags(password string) []string {
	var flags []string
	if r.options.TLS {
		flags = append(flags, "--local", "--tlscacert", r.CA)
	} else {
		flags = append(flags, "--plain-http")
	}
	if r.options.Auth != Anonymous {
		flags = append(flags, "--user", User+":"+password)
	}
	return flags
}

// applets are the names busybox gets in the image.
const applets = "sh ls cat echo sleep ps kill id stat mkdir rm mv cp ln touch dd df mount umount env printf head tail wc " +
	"sha256sum true false test stty tty nc wget ip free grep sed sync chmod chown readlink seq sort tr hostname date chroot"

// File is one entry of an image's layer.
type File struct {
	Name    string // of a directory: with a slash at the end
	Mode    int64  // permissions, and the bits setuid and setgid, see chmod(2)
	Content []byte
	Link    string // target of a symbolic link; "": it is none
}

func imageFiles(busybox, workload []byte) []File {
	files := []File{
		{Name: "bin/", Mode: 0o755}, {Name: "dev/", Mode: 0o755}, {Name: "etc/", Mode: 0o755}, {Name: "proc/", Mode: 0o755},
		{Name: "root/", Mode: 0o700}, {Name: "run/", Mode: 0o755}, {Name: "sys/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777},
		{Name: "var/", Mode: 0o755}, {Name: "varrun", Mode: 0o777, Link: "/run"}, {Name: "srv/", Mode: 0o777},
		{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/srv:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644, Content: []byte("root:x:0:\nalice:x:1000:\nstaff:x:2000:alice\n")},
		// What the overlay workload replaces.
		{Name: "usr/", Mode: 0o755}, {Name: "usr/share/", Mode: 0o755},
		{Name: "usr/share/old/", Mode: 0o755}, {Name: "usr/share/old/file", Mode: 0o644}, {Name: "usr/share/old/below/", Mode: 0o755},
		{Name: "usr/share/removed/", Mode: 0o755}, {Name: "usr/share/removed/file", Mode: 0o644},
		{Name: "usr/share/directory/", Mode: 0o755}, {Name: "usr/share/directory/file", Mode: 0o644},
		{Name: "usr/share/file", Mode: 0o644}, {Name: "usr/share/link", Mode: 0o644},
		{Name: "usr/share/kept/", Mode: 0o755}, {Name: "usr/share/kept/file", Mode: 0o644, Content: []byte("kept\n")},
		{Name: "usr/share/kept/replaced", Mode: 0o644, Content: []byte("as in the image\n")},
		{Name: "usr/share/kept/changed", Mode: 0o644, Content: []byte("as in the image\n")},
		{Name: "etc/motd", Mode: 0o644, Content: []byte("as in the image\n")},
		{Name: "bin/busybox", Mode: 0o755, Content: busybox},
		{Name: "bin/workload", Mode: 0o755, Content: workload},
	}
	for _, applet := range strings.Fields(applets) {
		files = append(files, File{Name: "bin/" + applet, Mode: 0o777, Link: "busybox"})
	}
	return files
}

// added lists what is in a directory, as entries of the image beyond those there are.
func added(dir string, files []File) ([]File, error) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := File{Name: strings.TrimPrefix(path, dir+"/"), Mode: int64(info.Mode().Perm())}
		switch {
		case d.IsDir():
			f.Name += "/"
			if slices.ContainsFunc(files, func(other File) bool { return other.Name == f.Name }) {
				return nil
			}
		case d.Type() == fs.ModeSymlink:
			f.Link, err = os.Readlink(path)
		case d.Type().IsRegular():
			f.Content, err = os.ReadFile(path)
		default:
			err = fmt.Errorf("%s is no file, directory or symbolic link", path)
		}
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what to add to the image: %w", err)
	}
	return files, nil
}

// writeImage writes an OCI image layout as a tar archive. The same programs and added files give the same digest.
func writeImage(name, workload, add, ref string, command []string, labels map[string]string) (Image, error) {
	busyboxPath, err := exec.LookPath("busybox")
	if err != nil {
		return Image{}, &MissingError{"no busybox", "run: make deps"}
	}
	busybox, err := os.ReadFile(busyboxPath)
	if err != nil {
		return Image{}, fmt.Errorf("read busybox: %w", err)
	}
	program, err := os.ReadFile(workload)
	if err != nil {
		return Image{}, fmt.Errorf("read workload: %w", err)
	}
	files := imageFiles(busybox, program)
	if add != "" {
		if files, err = added(filepath.Clean(add), files); err != nil {
			return Image{}, err
		}
	}
	return writeLayout(name, ref, command, files, labels)
}

// GPUFiles are those of the image for containers with GPUs: fakeapp and its loader and C library.
func (l *Lab) GPUFiles() ([]File, error) {
	files := []File{
		{Name: "dev/", Mode: 0o755}, {Name: "etc/", Mode: 0o755}, {Name: "fake/", Mode: 0o755}, {Name: "proc/", Mode: 0o755}, {Name: "run/", Mode: 0o755},
		{Name: "sys/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}, {Name: "usr/", Mode: 0o755}, {Name: "usr/lib64/", Mode: 0o755}, {Name: "srv/", Mode: 0o777},
	}
	for _, program := range []string{"fakeapp", "ld.so", "libc.so.6"} {
		content, err := os.ReadFile(filepath.Join(l.Tool("fakecuda/program"), program))
		if err != nil {
			return nil, &MissingError{"no fake driver in " + l.Tool("fakecuda"), "run: make fakecuda"}
		}
		files = append(files, File{Name: "fake/" + program, Mode: 0o755, Content: content})
	}
	return files, nil
}

// writeLayout writes an image of one layer.
func writeLayout(name, ref string, command []string, files []File, labels map[string]string) (Image, error) {
	var layer bytes.Buffer
	if err := writeTar(&layer, files); err != nil {
		return Image{}, err
	}
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   ocispec.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: command, Labels: labels},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer.Bytes())}},
	}
	archive := layout{{Name: "oci-layout", Mode: 0o644, Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    archive.addJSON(ocispec.MediaTypeImageConfig, config),
		Layers:    []ocispec.Descriptor{archive.add(ocispec.MediaTypeImageLayer, layer.Bytes())},
	}
	desc := archive.addJSON(ocispec.MediaTypeImageManifest, manifest)
	desc.Annotations = map[string]string{"io.containerd.image.name": ref, ocispec.AnnotationRefName: "1"}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{desc}})
	if err != nil {
		return Image{}, fmt.Errorf("encode image index: %w", err)
	}
	f, err := os.Create(name)
	if err != nil {
		return Image{}, fmt.Errorf("write image: %w", err)
	}
	defer f.Close()
	if err := writeTar(f, append(archive, File{Name: "index.json", Mode: 0o644, Content: index})); err != nil {
		return Image{}, err
	}
	return Image{Path: name, Digest: desc.Digest}, f.Close()
}

// layout collects the files of an OCI image layout.
type layout []File

func (l *layout) add(mediaType string, content []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	*l = append(*l, File{Name: path.Join("blobs/sha256", d.Digest.Encoded()), Mode: 0o644, Content: content})
	return d
}

func (l *layout) addJSON(mediaType string, value any) ocispec.Descriptor {
	content, err := json.Marshal(value)
	if err != nil {
		panic(err) // the types are ours and always encode
	}
	return l.add(mediaType, content)
}

func writeTar(w io.Writer, files []File) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), Typeflag: tar.TypeReg, Linkname: f.Link, ModTime: time.Unix(0, 0)}
		switch {
		case f.Link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("write tar header %s: %w", f.Name, err)
		}
		if _, err := t.Write(f.Content); err != nil {
			return fmt.Errorf("write tar entry %s: %w", f.Name, err)
		}
	}
	return t.Close()
}
