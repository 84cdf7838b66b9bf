package library

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestManagedSwept has the host touch memory of the device, in ascending order and here and there. Each chunk that it touches comes once, and no other chunk comes.
func TestManagedSwept(t *testing.T) {
	r, path := managedProgram(t, `
enum { CHUNKS = 48, WORDS = 2 * MIB / 8 };
int main(int argc, char **argv)
{
	begin();
	uint64_t *m = managed(CHUNKS * 2 * MIB);
	launch(m, CHUNKS * WORDS, 3);
	MUST(cuCtxSynchronize());
	if (argc > 1)
		for (int i = CHUNKS - 1; i >= 0; i -= 5)
			IS(m[i * WORDS + 7], 3);
	else
		for (size_t i = 0; i < CHUNKS * WORDS; i += 64)
			IS(m[i], 3);
	m[20 * WORDS] = 8; // a chunk that came with others is the host's alone once the host writes
	launch(m, CHUNKS * WORDS, 1);
	MUST(cuCtxSynchronize());
	IS(m[20 * WORDS], 9);
	IS(m[47 * WORDS], 4);
	printf("right\n");
}`, 256)
	for _, test := range []struct {
		arguments []string
		copies    int
	}{
		{nil, 48 + 2},
		{[]string{"apart"}, 10 + 1 + 2},
	} {
		r.Order(append(slices.Repeat([]string{"cuMemcpyDtoHAsync * pass"}, test.copies), "cuMemcpyDtoHAsync * error 999")...)
		if out := r.runs(path, test.arguments...); out != "right\n" {
			t.Errorf("%q: %s", test.arguments, out)
		}
		orders, err := os.ReadFile(filepath.Join(r.Dir, "orders"))
		if err != nil {
			t.Fatal(err)
		}
		if made := bytes.Count(orders, []byte("#")); made != test.copies {
			t.Errorf("%q: %d chunks came, which should be %d", test.arguments, made, test.copies)
		}
	}
}

// TestManagedTouchFails has the driver refuse what a touch of the host needs: the program's handler has the fault, and the next touch succeeds.
func TestManagedTouchFails(t *testing.T) {
	r, path := managedProgram(t, `
static sigjmp_buf before;
static void caught(int s) { siglongjmp(before, s); }
int main(void)
{
	int faults = 0;
	begin();
	uint64_t *m = managed(64 * MIB);
	launch(m, 8 * MIB, 3);
	MUST(cuCtxSynchronize());
	signal(SIGSEGV, caught);
	if (sigsetjmp(before, 1))
		faults++;
	for (size_t i = 0; i < 8 * MIB; i += 512)
		IS(((volatile uint64_t *)m)[i], 3);
	launch(m, 8 * MIB, 1);
	MUST(cuCtxSynchronize());
	for (size_t i = 0; i < 8 * MIB; i += 512)
		IS(m[i], 4);
	printf("%d\n", faults);
}`, 256)
	const pass, refuse = "cuMemcpyDtoHAsync * pass", "cuMemcpyDtoHAsync * error 2"
	for _, orders := range [][]string{
		{refuse},
		{pass, refuse},
		{pass, pass, pass, pass, refuse},
		{"cuStreamCreate * error 2"},
		{"cuStreamCreate * pass", "cuStreamCreate * error 2"}, // of a thread that copies beside the first
		{"cuMemHostAlloc * error 2"},
		{"cuMemHostAlloc * pass", "cuMemHostAlloc * pass", "cuMemHostAlloc * error 2"},
	} {
		r.Order(orders...)
		if out := r.runs(path); out != "1\n" {
			t.Errorf("%q: %s", orders, out)
		}
	}
}

// TestManagedSlow: a host that waits for a kernel for long is told why, once.
func TestManagedSlow(t *testing.T) {
	r, path := managedProgram(t, `
int main(void)
{
	begin();
	uint64_t *m = managed(4 * MIB);
	launch_later(m, MIB / 2, 3, 5600);
	IS(m[5], 3);
	printf("right\n");
}`, 64)
	out := r.runs(path)
	if !strings.HasSuffix(out, "right\n") || strings.Count(out, "io.cryo.gpu.managed=host") != 1 {
		t.Error(out)
	}
}

// TestManagedUnable: where the library cannot make managed memory, the driver does.
func TestManagedUnable(t *testing.T) {
	r, path := managedProgram(t, `
int main(void)
{
	unsigned is = 0;
	begin();
	uint64_t *m = managed(4 * MIB);
	MUST(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)m));
	IS(is, 1);
	launch(m, MIB / 2, 3);
	MUST(cuCtxSynchronize());
	IS(m[5], 3);
	MUST(cuMemFree_v2((CUdeviceptr)m));
	printf("right\n");
}`, 64)
	r.Order("cuMemAddressReserve * error 801")
	if out := r.runs(path); out != "right\n" {
		t.Error(out)
	}
}
