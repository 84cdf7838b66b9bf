package library

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestManagedSwept runs a program whose host reads chunks that the device has, in ascending order or far apart. The library copies each chunk once that the program reads, and no other.
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

// TestManagedTouchFails makes a call of the driver fail that the library needs when the host reads a chunk. The kernel's SIGSEGV reaches the program's own handler, and the program's next read succeeds.
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

// TestManagedSlow runs a program whose host waits for a kernel for more than 5 s. The library prints the reason once.
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

// TestManagedUnable makes the reservation of addresses fail. The program gets managed memory of the driver's.
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

// TestManagedAnswers asks about managed memory of the library's. The answers are those of the driver on an H200 (580.159.04) about its own.
func TestManagedAnswers(t *testing.T) {
	r, path := managedProgram(t, `
static uint64_t attribute(int which, uint64_t *at)
{
	uint64_t data[2] = {0, 0};
	MUST(cuPointerGetAttribute(data, which, (CUdeviceptr)at));
	return data[0];
}
static int range(int which, uint64_t *at)
{
	int is = 77;
	MUST(cuMemRangeGetAttribute(&is, 4, which, (CUdeviceptr)at, 4 * MIB));
	return is;
}
int main(void)
{
	unsigned off = 0;
	begin();
	uint64_t *m = managed(4 * MIB), *other = managed(4 * MIB), *small = managed(100), *beside = managed(100);
	IS(attribute(5, m), 0);  // tokens for peers
	IS(attribute(21, m), 0); // decompression
	IS(attribute(6, m), 1);  // copies and sets are synchronous
	MUST(cuPointerSetAttribute(&off, 6, (CUdeviceptr)m));
	IS(attribute(6, m), 0);
	IS(attribute(20, m) == attribute(20, other), 0); // blocks
	IS(attribute(20, small) == attribute(20, beside), 1);
	IS(attribute(7, small) == attribute(7, beside), 0); // buffers
	IS(attribute(19, beside), (uintptr_t)beside);
	for (int which = 6; which <= 8; which += 2)
		IS(range(which, m) + 2, 0); // no place
	IS(range(5, m), 0);
	IS(range(7, m), 0);
	MUST(cuMemAdvise((CUdeviceptr)m, 4 * MIB, 3, 0)); // prefer the device
	IS(range(5, m), 1);
	IS(range(6, m), 0);
	IS(cuMemAdvise((CUdeviceptr)m, 4 * MIB, 3, 9), 101);
	MUST(cuMemPrefetchAsync((CUdeviceptr)m, 4 * MIB, -1, NULL));
	IS(range(7, m), 2);
	IS(range(8, m) + 1, 0);
	IS(cuMemFreeAsync((CUdeviceptr)m, NULL), 801);
	MUST(cuMemFree_v2((CUdeviceptr)m));
	printf("right\n");
}`, 64)
	if out := r.runs(path); out != "right\n" {
		t.Error(out)
	}
}
