package worker

import "testing"

func TestLastLines(t *testing.T) {
	for _, test := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", -1, "a\nb\nc\n"},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"a\nb\nhalf", 2, "b\nhalf"},
		{"\n\n", 1, "\n"},
		{"", 3, ""},
	} {
		if got := string(LastLines([]byte(test.text), test.n)); got != test.want {
			t.Errorf("the last %d of %q are %q, want %q", test.n, test.text, got, test.want)
		}
	}
}
