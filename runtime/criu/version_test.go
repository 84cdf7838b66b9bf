package criu

import "testing"

func TestParseVersion(t *testing.T) {
	if got, err := ParseVersion("Version: 4.1.1\nGitID: v4.1\n"); err != nil || got != "4.1.1" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := ParseVersion("criu: error while loading shared libraries\n"); err == nil {
		t.Error("no version was found in an error")
	}
}

func TestAtLeast(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"4.0", "4.0", true}, {"4.1.1", "4.1", true}, {"3.19", "4.0", false}, {"4.10", "4.9", true},
		{"4", "4.0", true}, {"4.0", "4.0.1", false}, {"4.1-rc1", "4.1", true}, {"", "4.0", false},
	}
	for _, test := range tests {
		if got := AtLeast(test.a, test.b); got != test.want {
			t.Errorf("AtLeast(%q, %q) = %v", test.a, test.b, got)
		}
	}
}
