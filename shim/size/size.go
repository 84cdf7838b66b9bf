// Package size says bytes as people read and write them, in units of 1024.
package size

import (
	"fmt"

	"github.com/docker/go-units"
)

// Of returns so many bytes as 1.5 GiB, or 17 B.
func Of(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	return units.CustomSize("%.1f %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}

// Parse reads "256MiB", "256M", "1g" or plain bytes.
func Parse(s string) (int64, error) {
	n, err := units.RAMInBytes(s)
	if err != nil || n < 0 || n >= 1<<62 { // what does not fit becomes the least or the most of an int64
		return 0, fmt.Errorf("%q is not a size such as 256MiB", s)
	}
	return n, nil
}
