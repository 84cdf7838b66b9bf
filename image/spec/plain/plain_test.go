package plain

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestIs(t *testing.T) {
	for _, test := range []struct {
		character    bool
		n            Number
		every, given bool
	}{
		{true, Number{1, 3}, true, false}, {false, Number{1, 3}, false, false}, {true, Number{1, 1}, false, false}, {true, Number{Terminals, 0}, false, false},
		{true, Number{7, 0}, false, true}, {false, Number{7, 0}, false, false}, {false, Number{8, 1}, false, true}, {true, Number{8, 1}, false, false}, {true, Number{10, 200}, false, true},
	} {
		given := false
		for _, d := range []specs.LinuxDevice{{Type: "c", Major: 7}, {Type: "b", Major: 8, Minor: 1}, {Type: "u", Major: 10, Minor: 200}} {
			given = given || Is(d, test.character, test.n)
		}
		if IsDevice(test.character, test.n) != test.every || given != test.given {
			t.Errorf("%+v", test)
		}
	}
}

func TestIsReadonly(t *testing.T) {
	for _, test := range []struct {
		options []string
		want    bool
	}{{nil, false}, {[]string{"ro"}, true}, {[]string{"rro", "nosuid"}, true}, {[]string{"ro", "rw"}, false}, {[]string{"rrw", "ro"}, true}} {
		if IsReadonly(test.options) != test.want {
			t.Errorf("%q", test.options)
		}
	}
	if !IsBind(specs.Mount{Type: "bind"}) || !IsBind(specs.Mount{Type: "none", Options: []string{"rbind"}}) || IsBind(specs.Mount{Type: "tmpfs"}) {
		t.Error("bind mounts are not recognized")
	}
}
