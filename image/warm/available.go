package warm

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Total is how much memory this machine has, in bytes. Source: proc_meminfo(5).
func Total() (int64, error) { return meminfo("MemTotal") }

// Available is how much of it can be had without swapping, in bytes.
func Available() (int64, error) { return meminfo("MemAvailable") }

// available refuses what would leave the machine without memory.
func available(need int64) error {
	free, err := Available()
	if err != nil {
		return err
	}
	if need > free {
		return &ShortError{Need: need, Free: free}
	}
	return nil
}

func meminfo(name string) (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("look at this machine's memory: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == name+":" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("look at this machine's memory: %w", err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("look at this machine's memory: /proc/meminfo has no %s", name)
}
