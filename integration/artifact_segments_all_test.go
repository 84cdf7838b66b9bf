package integration

import "testing"

// TestArtifactSegments freezes a small container: its segments are of no more than 64 MiB, so that several cores make and send them, unless told otherwise.
func TestArtifactSegments(t *testing.T) {
	a, _ := pair(t)
	const mib, rest = 1 << 20, 1 << 20 // rest: of a segment, not memory
	for _, test := range []struct {
		flags       []string
		least, most int64 // bytes of the largest
	}{
		{nil, 32 * mib, 64*mib + rest},
		{[]string{"--segment-size", "256MiB"}, 64*mib + rest + 1, 256*mib + rest},
	} {
		f := freeze(t, []string{"count", "--memory", "192"}, test.flags...)
		largest, all := int64(0), inspect(t, a, f.ref).segments()
		for _, size := range all {
			largest = max(largest, size)
		}
		if largest < test.least || largest > test.most {
			t.Errorf("%q: the largest of %d segments has %d bytes", test.flags, len(all), largest)
		}
	}
}
