package conformance

import "testing"

func TestCompare(t *testing.T) {
	const without = "# libcuda is here\n" +
		"a 0 cuOne(x, 1) = 0 at=a+0\n" +
		"a 1 cuTwo() = 1\n" +
		"a 2 cuThree() = SIGSEGV\n" +
		"b 0 cuOne() absent\n" +
		"b 1 some note\n" +
		"# not called: cuFour\n"
	tests := []struct {
		name, with  string
		differences []string
		ended       int
	}{
		{"the same", without, nil, 1},
		{"another result", "a 0 cuOne(x, 1) = 0 at=a+0\na 1 cuTwo() = 2\na 2 cuThree() = SIGSEGV\nb 0 cuOne() absent\nb 1 some note\n",
			[]string{"a 1 cuTwo(): = 1 without the library, = 2 with it"}, 1},
		{"an end too early", "a 0 cuOne(x, 1) = no end\nb 0 cuOne() absent\nb 1 another\n", []string{
			"a 0 cuOne(x, 1): = 0 at=a+0 without the library, = no end with it",
			"a 1 cuTwo(): = 1 without the library, not made with it",
			"a 2 cuThree(): = SIGSEGV without the library, not made with it",
			"b 1: some note without the library, another with it",
		}, 2},
		{"another way", "a 0 cuOne(x, 1) = 0 at=a+0\na 1 cuFour() = 1\na 2 cuThree() = SIGSEGV\nb 0 cuOne() absent\nb 1 some note\nb 2 cuTwo() = 0\n", []string{
			"a 1 cuTwo(): = 1 without the library, cuFour() = 1 with it",
			"b 2 cuTwo(): not made without the library, = 0 with it",
		}, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := Compare(without, test.with)
			if err != nil {
				t.Fatal(err)
			}
			if c.Calls != 4 || len(c.Uncalled) != 1 || c.Uncalled[0] != "cuFour" || len(c.Ended) != test.ended {
				t.Errorf("%+v", c)
			}
			var got []string
			for _, d := range c.Differences {
				got = append(got, d.String())
			}
			if len(got) != len(test.differences) {
				t.Fatalf("differences: %q", got)
			}
			for i := range got {
				if got[i] != test.differences[i] {
					t.Errorf("%q, want %q", got[i], test.differences[i])
				}
			}
		})
	}
	if _, err := Compare(without, "bash: no such file\n"); err == nil {
		t.Error("no output is no error")
	}
}
