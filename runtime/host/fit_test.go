package host

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
)

func plain() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{},
		Linux:   &specs.Linux{},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
	}
}

// pair is a snapshot and a host on which it fits.
func pair() (image.Config, *specs.Spec, FitTarget) {
	h := image.Host{
		OS: "linux", Architecture: "amd64", Kernel: "6.12.0", PageSize: 4096, CPUModel: "model", CPUFeatures: []string{"avx2", "erms", "sse2"},
		XSaveSize: 2696, CgroupVersion: 2, CRIU: "4.1.1", Runc: "1.5.2",
	}
	t := FitTarget{Host: h, Seccomp: true, PathExists: func(path string) bool { return path == "/there" || path == "/dev/there" }}
	t.CPUFeatures = slices.Clone(h.CPUFeatures)
	return image.Config{Version: image.ConfigVersion, Host: h}, plain(), t
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*image.Config, *specs.Spec, *FitTarget)
		want   []string // rules that find something
	}{
		"same host":             {func(*image.Config, *specs.Spec, *FitTarget) {}, nil},
		"later version":         {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Version++ }, []string{"snapshot-version"}},
		"other os":              {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.OS = "freebsd" }, []string{"os"}},
		"other architecture":    {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.Architecture, t.CPUFeatures = "arm64", nil }, []string{"architecture"}},
		"larger pages":          {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.PageSize = 65536 }, []string{"page-size"}},
		"more features":         {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CPUFeatures = append(t.CPUFeatures, "avx512f") }, nil},
		"missing feature":       {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CPUFeatures = []string{"sse2", "erms"} }, []string{"cpu-features"}},
		"feature of speed only": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CPUFeatures = []string{"sse2", "avx2"} }, nil},
		"kernel's own feature": {func(c *image.Config, _ *specs.Spec, _ *FitTarget) {
			c.Host.CPUFeatures = append(c.Host.CPUFeatures, "ept")
		}, nil},
		"larger register state":  {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.XSaveSize = 11008 }, []string{"xsave-size"}},
		"smaller register state": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.XSaveSize = 832 }, []string{"xsave-size"}},
		"no register state":      {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Host.XSaveSize = 0 }, nil},
		"criu gone":              {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CRIU = "" }, []string{"criu-missing"}},
		"criu older":             {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CRIU = "4.0" }, []string{"criu-version"}},
		"criu older by a patch":  {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CRIU = "4.1" }, nil},
		"criu newer":             {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CRIU = "4.10" }, nil},
		"cgroup version":         {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.CgroupVersion = 1 }, []string{"cgroup-version"}},
		"kernel older":           {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.Kernel = "6.1.0-9-amd64" }, []string{"kernel-version"}},
		"kernel newer":           {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.Kernel = "7.0-rc1" }, nil},
		"kernel feature gone":    {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Host.Features = []string{"timens"} }, []string{"kernel-features"}},
		"nftables gone":          {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Host.Features = []string{NFTablesLock} }, []string{"network-lock"}},
		"nftables there": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.Host.Features, t.Features = []string{NFTablesLock}, []string{NFTablesLock}
		}, nil},
		"runc gone":           {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.Runc = "" }, []string{"runc-missing"}},
		"lsm gone":            {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Host.LSM = "apparmor" }, []string{"lsm"}},
		"lsm new":             {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.LSM = "apparmor" }, nil},
		"apparmor label":      {func(_ *image.Config, s *specs.Spec, _ *FitTarget) { s.Process.ApparmorProfile = "p" }, []string{"lsm-label"}},
		"apparmor unconfined": {func(_ *image.Config, s *specs.Spec, _ *FitTarget) { s.Process.ApparmorProfile = "unconfined" }, nil},
		"selinux label":       {func(_ *image.Config, s *specs.Spec, _ *FitTarget) { s.Process.SelinuxLabel = "l" }, []string{"lsm-label"}},
		"mounts": {func(_ *image.Config, s *specs.Spec, _ *FitTarget) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/a", Type: "bind", Source: "/gone"}, specs.Mount{Destination: "/b", Options: []string{"rbind"}, Source: "/gone"},
				specs.Mount{Destination: "/c", Type: "bind", Source: "/there"}, specs.Mount{Destination: "/d", Type: "bind", Source: "there"})
		}, []string{"bind-mounts", "bind-mounts", "bind-mounts"}},
		"devices": {func(_ *image.Config, s *specs.Spec, _ *FitTarget) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/there"}, {Path: "/dev/gone"}}
		}, []string{"devices"}},
		"seccomp": {func(_ *image.Config, s *specs.Spec, t *FitTarget) {
			s.Linux.Seccomp, t.Seccomp = &specs.LinuxSeccomp{}, false
		}, []string{"seccomp"}},
		"tcp":     {func(c *image.Config, _ *specs.Spec, _ *FitTarget) { c.Process.TCPEstablished = true }, []string{"tcp-established"}},
		"windows": {func(_ *image.Config, s *specs.Spec, _ *FitTarget) { s.Linux = nil }, []string{"snapshot-spec"}},
	} {
		t.Run(name, func(t *testing.T) {
			config, spec, target := pair()
			c.change(&config, spec, &target)
			config.Spec, _ = json.Marshal(spec)
			v := CheckFit(config, target)
			var got []string
			for _, f := range v.Findings {
				got = append(got, f.Rule)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("found %v, want %v", v.Findings, c.want)
			}
			fatal := slices.ContainsFunc(FitRules(), func(r FitRule) bool { return r.Fatal && slices.Contains(c.want, r.Name) })
			if v.Fits() == fatal {
				t.Errorf("Fits() = %v", v.Fits())
			}
			if fatal != errors.Is(v.Err(), failure.ErrMisfit) {
				t.Errorf("Err() = %v", v.Err())
			}
			if fatal && (!errdefs.IsFailedPrecondition(v.Err()) || failure.Hint(v.Err()) == "") {
				t.Errorf("kind or hint of %v", v.Err())
			}
		})
	}
}

func TestCheckDamagedSpec(t *testing.T) {
	for _, spec := range []string{"", "{", "[]", "null", "{}"} {
		config, _, target := pair()
		config.Spec = json.RawMessage(spec)
		if v := CheckFit(config, target); v.Fits() {
			t.Errorf("spec %q fits", spec)
		}
	}
}

func TestMisfitNamesMountAndFlag(t *testing.T) {
	config, spec, target := pair()
	spec.Mounts = []specs.Mount{{Destination: "/data", Type: "bind", Source: "/gone"}}
	config.Spec, _ = json.Marshal(spec)
	err := CheckFit(config, target).Err()
	if !errors.Is(err, failure.ErrMisfit) || !strings.Contains(err.Error(), "/data") || !strings.Contains(failure.Hint(err), "--mount type=bind,src=PATH,dst=/data") {
		t.Errorf("error %v", err)
	}
}

func TestForce(t *testing.T) {
	config, spec, target := pair()
	config.Spec, _ = json.Marshal(spec)
	target.XSaveSize, target.CgroupVersion = 1, 1
	v := CheckFit(config, target)
	for _, c := range []struct {
		rules []string
		fits  bool
	}{
		{nil, false}, {[]string{"xsave-size"}, false}, {[]string{"xsave-size", "cgroup-version"}, true}, {[]string{"all"}, true},
	} {
		forced, err := v.Force(c.rules...)
		if err != nil || forced.Fits() != c.fits {
			t.Errorf("Force(%v): fits %v, %v", c.rules, forced.Fits(), err)
		}
		if len(forced.Findings) != 2 || v.Fits() {
			t.Errorf("Force(%v) lost or changed a finding", c.rules)
		}
		if c.fits && len(forced.Warnings()) != 2 {
			t.Errorf("Force(%v): overridden findings are not warnings", c.rules)
		}
	}
	if _, err := v.Force("xsave"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown rule: %v", err)
	}
	target.CRIU = ""
	if forced, _ := CheckFit(config, target).Force("all"); forced.Fits() {
		t.Error("a missing CRIU was overridden")
	}
}

func TestRulesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range FitRules() {
		if r.Name == "" || r.Why == "" || r.check == nil || seen[r.Name] {
			t.Errorf("rule %+v", r)
		}
		seen[r.Name] = true
	}
	for name := range mandatory {
		if !seen[name] {
			t.Errorf("no rule %s", name)
		}
	}
	if !slices.IsSorted(instructions) {
		sorted := slices.Sorted(slices.Values(instructions))
		for i := range sorted {
			if sorted[i] != instructions[i] {
				t.Errorf("instructions are not sorted at %s", instructions[i])
				break
			}
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		older bool
	}{
		{"4.1", "4.1.1", false}, {"4.0.9", "4.1", true}, {"3.19", "4.0", true}, {"4.10", "4.9", false}, {"5", "4.9", false}, {"4", "4.1", true},
		{"", "4.1", false}, {"nonsense", "4.1", false}, {"4.x", "4.1", true}, {"6.1.0-9-amd64", "6.12", true}, {"99999999999999999999.1", "4", false},
	} {
		if got := older(c.a, c.b); got != c.older {
			t.Errorf("older(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

func FuzzCheck(f *testing.F) {
	config, spec, target := pair()
	good, _ := json.Marshal(spec)
	f.Add(good, "6.1", "4.1", "avx2")
	f.Add([]byte(`{"linux":{"devices":[{}]},"process":{},"mounts":[{"type":"bind"}]}`), "", "..", "\x1b[2J")
	f.Fuzz(func(t *testing.T, spec []byte, kernel, criu, flag string) {
		c := config
		c.Spec, c.Host.Kernel, c.Host.CRIU, c.Host.CPUFeatures = spec, kernel, criu, []string{flag}
		v := CheckFit(c, target)
		if v.Fits() != (v.Err() == nil) {
			t.Errorf("Fits() and Err() disagree: %v", v.Findings)
		}
	})
}
