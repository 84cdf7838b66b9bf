package registry

import (
	"fmt"
	"strings"
)

// location is where a snapshot lies outside of the store.
type location struct {
	text string // as the user wrote it
	tar  bool
	path string
	tag  string // may be empty; a tag or a whole reference
}

// IsLocation reports whether a name given by a user is a location of this package and not a reference.
func IsLocation(s string) bool {
	return strings.HasPrefix(s, "oci:") || strings.HasPrefix(s, "oci-archive:")
}

// parseLocation splits as skopeo does: the path ends at the first colon.
func parseLocation(s string) (location, error) {
	l := location{text: s}
	rest, ok := strings.CutPrefix(s, "oci-archive:")
	if ok {
		l.tar = true
	} else if rest, ok = strings.CutPrefix(s, "oci:"); !ok {
		return l, misspelt(s, "it starts neither with oci: nor with oci-archive:")
	}
	var tagged bool
	l.path, l.tag, tagged = strings.Cut(rest, ":")
	switch {
	case l.path == "":
		return l, misspelt(s, "the path is missing")
	case strings.ContainsRune(s, 0):
		return l, misspelt(s, "it holds a NUL byte")
	case tagged && l.tag == "":
		return l, misspelt(s, "nothing follows the last colon")
	}
	return l, nil
}

func (l location) String() string { return fmt.Sprintf("%q", l.text) }
