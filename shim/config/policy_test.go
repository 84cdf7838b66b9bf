package config

import "testing"

func TestRegistriesAllow(t *testing.T) {
	p := Registries{Repositories: []string{"r.example.com/prod", "localhost:5000"}, PlainHTTP: []string{"localhost:5000"}}
	for ref, want := range map[string]bool{
		"r.example.com/prod/app:1":           true,
		"r.example.com/prod:1":               true,
		"R.example.com/prod:1":               true,
		"r.example.com/prod/app@sha256:aa":   true,
		"localhost:5000/a:1":                 true,
		"r.example.com:443/prod:1":           true,
		"r.example.com:5000/prod:1":          false,
		"r.example.com/production:1":         false,
		"r.example.com/other:1":              false,
		"r.example.com.evil.org/prod:1":      false,
		"localhost:5001/a:1":                 false,
		"docker.io/library/prod:1":           false,
		"sha256:0000":                        false,
		"r.example.com/x/r.example.com/prod": false,
	} {
		if got := p.Allows(ref); got != want {
			t.Errorf("%s: %v", ref, got)
		}
	}
	if (Registries{}).Allows("r.example.com/prod:1") {
		t.Error("without a configuration something is allowed")
	}
	for name, want := range map[string]bool{
		"r.example.com/prod/app": true, "r.example.com/prod/app@sha256:0000000000000000000000000000000000000000000000000000000000000000": true,
		"r.example.com/other": false, "app": false, "sha256:0000000000000000000000000000000000000000000000000000000000000000": false, "": false, "Not A Name": false,
	} {
		if got := p.AllowsImage(name); got != want {
			t.Errorf("image %s: %v", name, got)
		}
	}
	if !p.Plain("localhost:5000/a:1") || p.Plain("r.example.com/a:1") || p.Plain("localhost:5000.evil.org/a:1") {
		t.Error("another registry is spoken to in plain HTTP, or this one is not")
	}
}

func TestPolicyRefused(t *testing.T) {
	for _, text := range []string{
		`repositories = ["r.example.com/app:tag"]`, `repositories = ["library"]`, `repositories = ["*"]`, `repositories = [""]`, `plain-http = ["localhost:5000/a"]`,
		`credentials = "config.json"`, `timeout = 0`, `timeout = 3601`, `registries = []`,
	} {
		if _, err := parse("f", []byte("[restore.policy]\n"+text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	c, err := parse("f", []byte("[restore.policy]\nrepositories = [\"r.example.com/prod\"]\ntimeout = 5"))
	if err != nil || !c.Restore.Policy.Allows("r.example.com/prod:1") || c.Restore.Policy.Timeout != 5 {
		t.Errorf("%+v, %v", c.Restore, err)
	}
}

// TestCheckpoint reads where snapshots may be sent.
func TestCheckpoint(t *testing.T) {
	for _, text := range []string{`repositories = ["Registry/x"]`, `plain-http = ["r/x"]`, `credentials = "config.json"`, `timeout = 5`} {
		if _, err := parse("f", []byte("[checkpoint]\n"+text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	c, err := parse("f", []byte("[checkpoint]\nrepositories = [\"r.example.com/prod\"]\nplain-http = [\"r.example.com\"]\ncredentials = \"/etc/cryo/config.json\""))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Checkpoint.Allows("r.example.com/prod/app:1") || c.Checkpoint.Allows("r.example.com/production/app:1") || c.Restore.Policy.Allows("r.example.com/prod/app:1") {
		t.Error("other repositories are allowed than configured")
	}
	if !c.Checkpoint.Plain("r.example.com/prod/app:1") || c.Checkpoint.Plain("example.com/prod/app:1") {
		t.Error("other registries are spoken to without TLS than configured")
	}
	if Default().Checkpoint.Allows("r.example.com/prod/app:1") {
		t.Error("something is allowed that nobody has configured")
	}
}
