package host

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
)

// FitGPUs are what a host has for the GPUs of a snapshot.
type FitGPUs struct {
	// NoHelper says why there is no cryo-gpu-keeper, without which nothing else is known.
	NoHelper error
	// NoGPU says why there are none: the driver cannot be used, or there is no such CDI device.
	NoGPU error
	// Unasked: the driver has not said anything yet, and what it may say refuses nothing.
	Unasked bool
	// Driver is the version of NVIDIA's driver.
	Driver string
	// Devices are those that take the places of the snapshot's, in the same order.
	Devices []record.HostGPU
	// Mounts are where CDI devices of this host mount files in the container.
	Mounts []string
	// Library is the digest of the file that containers get to hand device memory over; NoLibrary says why there is none.
	Library   digest.Digest
	NoLibrary error
}

// gpuLibrary: processes go on in the code of the file that they have mapped.
func gpuLibrary(s comparison, t FitTarget) []mismatch {
	if s.GPU == nil || s.GPU.Library == nil || t.GPUs.Library == s.GPU.Library.Digest {
		return nil
	}
	const hint = "install the version of cryo that the snapshot was made with"
	was := s.GPU.Library
	switch {
	case t.GPUs.NoLibrary != nil:
		return one("the container was made with a library for its GPUs, and this host has none: "+t.GPUs.NoLibrary.Error(), hintOf(t.GPUs.NoLibrary, hint))
	case was.Version != "":
		return one(sprintf("the container was made with version %s of the library for its GPUs, and this host has another file: %s instead of %s", was.Version, t.GPUs.Library, was.Digest), hint)
	}
	return one(sprintf("the container was made with another file of the library for its GPUs: this host has %s instead of %s", t.GPUs.Library, was.Digest), hint)
}

func gpuKeeper(s comparison, t FitTarget) []mismatch {
	if s.GPU == nil || t.GPUs.NoHelper == nil {
		return nil
	}
	return one("the snapshot has GPUs, and this host cannot look after its own: "+t.GPUs.NoHelper.Error(), hintOf(t.GPUs.NoHelper, "install cryo-gpu-keeper"))
}

func gpuMissing(s comparison, t FitTarget) []mismatch {
	switch {
	case s.GPU == nil || t.GPUs.NoHelper != nil:
		return nil
	case t.GPUs.NoGPU != nil:
		return one("the snapshot has GPUs, and this host none for it: "+t.GPUs.NoGPU.Error(), hintOf(t.GPUs.NoGPU, "restore on a host with NVIDIA GPUs"))
	case t.GPUs.Driver == "" && !t.GPUs.Unasked:
		return one("the snapshot has GPUs, and this host no NVIDIA driver", "restore on a host with NVIDIA GPUs")
	}
	return nil
}

// looked reports whether there is something to compare; if not, another rule has said so.
func looked(s comparison, t FitTarget) bool {
	return s.GPU != nil && t.GPUs.NoHelper == nil && t.GPUs.NoGPU == nil && (t.GPUs.Driver != "" || t.GPUs.Unasked)
}

// used tells so too, but where no process has used its GPUs there is nothing to load, and before the driver was asked nothing is known of them.
func used(s comparison, t FitTarget) bool {
	return looked(s, t) && !t.GPUs.Unasked && len(s.GPU.Processes) > 0
}

// compared has [record.GPU.Compare] compare by one of its rules.
func compared(rule string) func(comparison, FitTarget) []mismatch {
	return func(s comparison, t FitTarget) (found []mismatch) {
		if !used(s, t) {
			return nil
		}
		for _, m := range s.GPU.Compare(t.GPUs.Driver, t.GPUs.Devices) {
			if m.Rule == rule {
				found = append(found, mismatch{m.Problem, m.Hint})
			}
		}
		return found
	}
}

func gpuDriverVersion(s comparison, t FitTarget) []mismatch {
	if !used(s, t) || s.GPU.Driver == t.GPUs.Driver || record.DriverBranch(s.GPU.Driver) != record.DriverBranch(t.GPUs.Driver) {
		return nil
	}
	return one(sprintf("the snapshot is by NVIDIA driver %s, this host has %s", s.GPU.Driver, t.GPUs.Driver), "")
}

// gpuCount: the driver wants a partner for each GPU whose node a process can see, no more and no fewer. Measured with 580.159.04.
func gpuCount(s comparison, t FitTarget) []mismatch {
	if !used(s, t) || len(t.GPUs.Devices) == len(s.GPU.Devices) {
		return nil
	}
	return one(sprintf("the snapshot has %d GPUs, and would get %d", len(s.GPU.Devices), len(t.GPUs.Devices)),
		"give it exactly as many: --device nvidia.com/gpu=0 --device nvidia.com/gpu=1, and so on")
}

// gpuLibraries: each mount of CRIU's images needs a source, and the processes have mapped what was mounted there.
func gpuLibraries(s comparison, t FitTarget) []mismatch {
	if !looked(s, t) {
		return nil
	}
	have := slices.Clone(t.GPUs.Mounts)
	if s.spec != nil {
		for _, m := range s.spec.Mounts {
			have = append(have, m.Destination)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(s.GPU.Mounts), func(m string) bool { return slices.Contains(have, m) })
	if len(missing) == 0 {
		return nil
	}
	const most = 3
	text := strings.Join(missing[:min(most, len(missing))], ", ")
	if more := len(missing) - most; more > 0 {
		text += sprintf(" and %d more", more)
	}
	return one(sprintf("the CDI devices of this host do not provide %s, which the container has mounted", text),
		sprintf("install NVIDIA driver %s with the same parts as on the snapshot's host, and write the CDI file anew: nvidia-ctk cdi generate", s.GPU.Driver))
}

// hintOf returns the hint of an error, or another.
func hintOf(err error, otherwise string) string {
	return cmp.Or(failure.Hint(err), otherwise)
}
