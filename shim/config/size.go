package config

import (
	"fmt"

	"github.com/docker/go-units"
)

// Size returns so many bytes as 1.5 GiB, or 17 B.
func Size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	return units.CustomSize("%.1f %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}

// ParseSize reads "256MiB", "256M", "1g" or plain bytes.
func ParseSize(s string) (int64, error) {
	n, err := units.RAMInBytes(s)
	if err != nil || n < 0 || n >= 1<<62 { // what does not fit becomes the least or the most of an int64
		return 0, fmt.Errorf("%q is not a size such as 256MiB", s)
	}
	return n, nil
}
