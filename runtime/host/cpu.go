package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CPU returns the processor's features and the size of its register state as [Facts] has them. root is of /proc.
func CPU(root string) (features []string, xsave uint32, err error) {
	_, features, err = cpu(root)
	return features, xsaveSize(), err
}

// cpu reads the first processor of /proc/cpuinfo: its model, for people, and its flags, sorted. x86 says "model name"
// and "flags", arm64 "CPU implementer", "CPU part" and "Features". Processors of one host may differ (arm64 big.LITTLE);
// then a flag counts only if all have it, since a process may run on any.
func cpu(root string) (model string, flags []string, err error) {
	f, err := os.Open(filepath.Join(root, "proc/cpuinfo"))
	if err != nil {
		return "", nil, fmt.Errorf("read the processor's features: %w", err)
	}
	defer f.Close()
	var parts []string
	first := true
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		key, value, ok := strings.Cut(s.Text(), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name":
			model = value
		case "CPU implementer", "CPU part":
			if len(parts) < 2 {
				parts = append(parts, value)
			}
		case "flags", "Features", "features":
			flags = common(flags, strings.Fields(value), first)
			first = false
		}
	}
	if err := s.Err(); err != nil {
		return "", nil, fmt.Errorf("read the processor's features: %w", err)
	}
	if first {
		return "", nil, errors.New("read the processor's features: /proc/cpuinfo has none")
	}
	if model == "" && len(parts) > 0 {
		model = "implementer " + strings.Join(parts, " part ")
	}
	return model, flags, nil
}

// common returns what is in both, sorted; b alone if it is the first.
func common(a, b []string, first bool) []string {
	b = slices.Compact(slices.Sorted(slices.Values(b)))
	if first {
		return b
	}
	return slices.DeleteFunc(a, func(flag string) bool {
		_, found := slices.BinarySearch(b, flag)
		return !found
	})
}
