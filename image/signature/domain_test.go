package signature

import "testing"

// TestCanonical: one registry has one name.
func TestCanonical(t *testing.T) {
	for name, want := range map[string]string{
		"r.example.com":             "r.example.com",
		"R.Example.COM:443":         "r.example.com",
		"r.example.com:0443":        "r.example.com",
		"r.example.com.":            "r.example.com",
		"r.example.com:80":          "r.example.com:80",
		"r.example.com:5000":        "r.example.com:5000",
		"docker.io":                 DockerDomain,
		"docker.io:443":             DockerDomain,
		"Index.Docker.io":           DockerDomain,
		"registry-1.docker.io:443":  DockerDomain,
		"registry-1.docker.io:5000": "registry-1.docker.io:5000",
		"docker.io.evil.org":        "docker.io.evil.org",
		"[::1]":                     "[::1]",
		"[::1]:443":                 "[::1]",
		"[0:0:0:0:0:0:0:1]:5000":    "[::1]:5000",
		"[FD00:EC2::0254]":          "[fd00:ec2::254]",
		"[::ffff:7f00:1]:5000":      "127.0.0.1:5000",
		"127.0.0.1:443":             "127.0.0.1",
		"localhost:5000":            "localhost:5000",
		"999.example.com:99999":     "999.example.com:99999",
		"":                          "",
	} {
		if got := CanonicalDomain(name); got != want {
			t.Errorf("Canonical(%q) = %q, want %q", name, got, want)
		}
		if got := CanonicalDomain(want); got != want {
			t.Errorf("Canonical(%q) = %q", want, got)
		}
	}
}

// TestRepository takes references and prefixes apart.
func TestRepository(t *testing.T) {
	for ref, want := range map[string]string{
		"r.example.com:443/a/b:1":                "r.example.com/a/b",
		"r.example.com:5000/a/b@sha256:00":       "r.example.com:5000/a/b",
		"index.docker.io/library/redis:7":        "docker.io/library/redis",
		"[0::1]:5000/a:1":                        "[::1]:5000/a",
		"sha256:0000000000000000000000000000000": "",
	} {
		if got := RepositoryOf(ref); got != want {
			t.Errorf("Repository(%q) = %q, want %q", ref, got, want)
		}
	}
	for prefix, want := range map[string]string{"r.example.com:443": "r.example.com", "[0::1]/a/b": "[::1]/a/b", "registry-1.docker.io/library": "docker.io/library"} {
		if got := CanonicalPrefix(prefix); got != want {
			t.Errorf("Prefix(%q) = %q, want %q", prefix, got, want)
		}
	}
}
