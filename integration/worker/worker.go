// Package worker runs tests for package runner. The process of a test program makes the hosts that its tests share once, and then runs one test after the other, as runner names them.
package worker

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

var given = flag.Bool("worker", false, "run the tests whose names come in descriptor 3, a line each, and write their exit status to descriptor 4")

// Run runs the tests that the flags choose. With -worker it reads names of tests, and runs each of them, until the input ends. It returns the exit status.
func Run(m *testing.M) (code int) {
	if !*given {
		return m.Run()
	}
	names, codes := os.NewFile(3, "names"), os.NewFile(4, "codes")
	unix.CloseOnExec(int(names.Fd()))
	unix.CloseOnExec(int(codes.Fd()))
	for lines := bufio.NewScanner(names); lines.Scan(); {
		if err := flag.Set("test.run", "^"+lines.Text()+"$"); err != nil {
			fmt.Println(err)
			return 2
		}
		fmt.Fprintln(codes, m.Run())
	}
	return 0
}
