package image

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/image/format"
)

// parentName is where CRIU looks for the images of the dump before. Source: criu/include/image.h, CR_PARENT_LINK.
const parentName = "parent"

// addEmptyParent adds images of an earlier dump to processes, in which there is nothing. With them CRIU keeps huge pages away until it has left lazy
// memory to userfaultfd. Without, it takes mappings that can be lazy for empty until then, which they are not where they are inherited from a
// process that is not lazy: each page that is there would become a huge one, and what else lies in it zeros that are not filled in. Source:
// criu/mem.c, maybe_disable_thp.
func addEmptyParent(dir string, maps []*format.Pagemap) error {
	parent := filepath.Join(dir, parentName)
	if err := os.Mkdir(parent, 0o700); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	const file = 1 // of all of them
	for _, m := range maps {
		if _, ok := format.PagemapPID(m.Name); !ok {
			continue
		}
		empty, err := format.EmptyPagemap(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(parent, m.Name), empty, 0o600)
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, format.PagesFileName(file)), nil, 0o600); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}
