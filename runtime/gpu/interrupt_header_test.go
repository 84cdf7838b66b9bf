package gpu

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The header's compiler checks its layout by static_assert; these are what this package relies on.
func TestHeader(t *testing.T) {
	header, err := os.ReadFile("../../contrib/cuda/cryo_interrupt.cuh")
	if err != nil {
		t.Fatal(err)
	}
	bare, _ := strings.CutPrefix(strings.TrimSuffix(name, " (deleted)"), "/memfd:")
	var letters []string
	for _, letter := range magic {
		letters = append(letters, fmt.Sprintf("'%c'", letter))
	}
	for _, want := range []string{
		"static_assert(offsetof(page, magic) == 0,",
		fmt.Sprintf("static_assert(offsetof(page, version) == %d,", offsetVersion),
		fmt.Sprintf("static_assert(offsetof(page, flag) == %d,", offsetFlag),
		fmt.Sprintf("static_assert(offsetof(page, lease) == %d,", offsetLease),
		fmt.Sprintf("static_assert(sizeof(page) == %d,", pageSize),
		fmt.Sprintf("current = %d,", version),
		fmt.Sprintf("SYS_memfd_create, %q,", bare),
		"{" + strings.Join(letters, ", ") + "}",
	} {
		if !strings.Contains(string(header), want) {
			t.Errorf("the header lacks %q", want)
		}
	}
}
