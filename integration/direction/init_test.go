package direction

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	_ "github.com/cryo-project/cryo/image/trust"
)

// TestInit has what every process of a restore pays when it starts: the package of the review compiles no expression.
func TestInit(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "-test.run=^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	// init PACKAGE @TIME ms, TIME ms clock, BYTES bytes, N allocs
	trace := regexp.MustCompile(`init (\S+/image/trust) .* (\d+) bytes`)
	const bound = 5 // digits: one expression of these takes tens of thousands
	for _, m := range trace.FindAllStringSubmatch(string(out), -1) {
		if len(m[2]) >= bound {
			t.Errorf("%s takes %s bytes when a program starts", m[1], m[2])
		}
	}
	if !strings.Contains(string(out), "/image/trust ") {
		t.Errorf("no trace of the review's package in %s", out)
	}
}
