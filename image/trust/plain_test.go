package trust

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestIs(t *testing.T) {
	for _, test := range []struct {
		character    bool
		n            DeviceNumber
		every, given bool
	}{
		{true, DeviceNumber{1, 3}, true, false}, {false, DeviceNumber{1, 3}, false, false}, {true, DeviceNumber{1, 1}, false, false}, {true, DeviceNumber{TerminalMajor, 0}, false, false},
		{true, DeviceNumber{7, 0}, false, true}, {false, DeviceNumber{7, 0}, false, false}, {false, DeviceNumber{8, 1}, false, true}, {true, DeviceNumber{8, 1}, false, false}, {true, DeviceNumber{10, 200}, false, true},
	} {
		given := false
		for _, d := range []specs.LinuxDevice{{Type: "c", Major: 7}, {Type: "b", Major: 8, Minor: 1}, {Type: "u", Major: 10, Minor: 200}} {
			given = given || IsDeviceNumber(d, test.character, test.n)
		}
		if IsPlainDevice(test.character, test.n) != test.every || given != test.given {
			t.Errorf("%+v", test)
		}
	}
}

func TestIsReadonly(t *testing.T) {
	for _, test := range []struct {
		options []string
		want    bool
	}{{nil, false}, {[]string{"ro"}, true}, {[]string{"rro", "nosuid"}, true}, {[]string{"ro", "rw"}, false}, {[]string{"rrw", "ro"}, true}} {
		if IsReadonlyMount(test.options) != test.want {
			t.Errorf("%q", test.options)
		}
	}
	if !IsBindMount(specs.Mount{Type: "bind"}) || !IsBindMount(specs.Mount{Type: "none", Options: []string{"rbind"}}) || IsBindMount(specs.Mount{Type: "tmpfs"}) {
		t.Error("bind mounts are not recognized")
	}
}
