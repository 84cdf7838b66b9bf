// cryo-guard stands between a restore and what is hostile in a snapshot: it confines CRIU, fills file systems in memory in the place of tar, and reviews CRIU's images.
// A restore starts it half a dozen times, so it links no more than that needs: see package guard. cryo and its shim start it, and no user does.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/guard"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case guard.TarName:
		os.Exit(guard.TarMain(os.Args))
	case guard.CRIUName:
		os.Exit(guard.ConfineMain(os.Args))
	}
	if len(os.Args) == 3 && os.Args[1] == trust.ReviewCommand {
		os.Exit(trust.ReviewMain(os.Args[2]))
	}
	fmt.Fprintf(os.Stderr, "%s: cryo and its shim start this program; for restores use: cryo restore\n", guard.ProgramName)
	os.Exit(2)
}
