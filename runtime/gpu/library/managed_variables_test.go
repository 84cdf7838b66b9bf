package library

import (
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// variablesSource is for programs that load variables.cubin (integration/fakecuda/variables.cu). Its kernel adds 3 to turns, and lets where point to turns. To each word of sums and of marks it adds the word's number.
const variablesSource = `
extern const char cubin[];
__asm__(".section .rodata\n.balign 16\ncubin: .incbin \"../../../integration/fakecuda/variables.cubin\"\n.previous");
enum { SUMS = 1000, MARKS = (3 << 20) / 8 };
static void *module;
static CUfunction change;
static uint64_t *turns, *sum, *marks, **where;
static void *variable(const char *name, size_t bytes)
{
	CUdeviceptr pointer;
	size_t found;
	MUST(cuModuleGetGlobal_v2(&pointer, &found, module, name));
	IS(found, bytes);
	return (void *)pointer;
}
static void load(const void *code)
{
	MUST(cuModuleLoadData(&module, code));
	MUST(cuModuleGetFunction(&change, module, "fake_variables"));
	turns = variable("fake_turns", 8);
	sum = variable("fake_sums", 8 * SUMS);
	marks = variable("fake_marks", 8 * MARKS);
	where = variable("fake_where", 8);
}
static int run(void) { return cuLaunchKernel(change, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){NULL}, NULL); }
// are compares the variables with what they are after so many runs.
static void are(uint64_t n)
{
	IS(*turns, 7 + 3 * n);
	IS(*where == (n ? turns : NULL), 1);
	for (size_t i = 0; i < SUMS; i++)
		IS(sum[i], (i < 2 ? i + 1 : 0) + n * i);
	for (size_t i = 0; i < MARKS; i += 101)
		IS(marks[i], n * i);
}
static int is_managed(const void *p)
{
	unsigned is = 0;
	int r = cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)p);
	return r ? -r : (int)is;
}
`

// TestManagedVariables changes managed variables of a module on the host and on the device, and hands them over. Another module has variables of its own.
func TestManagedVariables(t *testing.T) {
	r, path := managedProgram(t, variablesSource+`
int main(void)
{
	uint64_t *before, n = 0;
	char step[64];
	void *first;
	begin();
	load(cubin);
	are(0);
	IS(is_managed(sum + 999), 1);
	while (next(step)) {
		if (!strcmp(step, "run")) {
			MUST(run());
			are(++n);
		} else if (!strcmp(step, "write")) { // what a run would have made of them
			*turns += 3;
			*where = turns;
			for (size_t i = 0; i < SUMS; i++)
				sum[i] += i;
			for (size_t i = 0; i < MARKS; i++)
				marks[i] += i;
			are(++n);
		} else if (!strcmp(step, "again")) {
			first = module;
			before = turns;
			load(cubin);
			IS(turns == before, 0);
			are(0);
			MUST(run());
			MUST(cuModuleUnload(first));
			IS(is_managed(before) == 1, 0);
			are(n = 1);
		} else {
			return 1;
		}
		printf("done %s\n", step);
	}
	MUST(cuModuleUnload(module));
	IS(is_managed(turns) == 1, 0);
	MUST(cuCtxDestroy_v2(context));
	printf("over\n");
}`, 256)
	a := r.steps(path).app(r)
	for _, step := range []string{"run", "write", "again", "run", "write"} {
		a.does(step)
		pieces, files := a.take()
		a.back(pieces, files)
	}
	a.does("run")
	a.must(a.in.Close())
	a.says("over")
}

// fatSource is for programs that make a fat binary, as programs of nvcc have it. compiled is PTX with the cubin behind it, which the fake driver compiles it to.
const fatSource = `
extern const char cubin_end[];
__asm__(".section .rodata\ncubin_end:\n.previous");
struct entry { uint16_t kind, version; uint32_t header; uint64_t bytes, unused; uint16_t minor, major; uint32_t architecture, rest[8]; };
static struct { uint32_t magic; uint16_t version, header; uint64_t bytes; char rest[128 << 10]; } fat = {0xba55ed50, 1, 16, 0, ""};
static struct { uint32_t magic, version; const void *data, *more; } wrapper = {0x466243b1, 1, &fat, NULL};
static const char text[] = ".version 9.0 .target sm_90 .visible .global .attribute(.managed) .u64 fake_turns;";
static char compiled[sizeof(text) + 8 + (64 << 10)] __attribute__((aligned(8)));
static size_t compiled_bytes;
static void append(int kind, unsigned architecture, const void *data, size_t bytes)
{
	struct entry e = {kind, 257, sizeof(e), (bytes + 7) & ~(size_t)7, 0, 8, 1, architecture, {0}};
	memcpy(fat.rest + fat.bytes, &e, sizeof(e));
	memcpy(fat.rest + fat.bytes + sizeof(e), data, bytes);
	fat.bytes += sizeof(e) + e.bytes;
}
static void compile(void)
{
	size_t at = (strlen(text) + 8) / 8 * 8;
	memcpy(compiled, text, sizeof(text));
	memcpy(compiled + at, cubin, cubin_end - cubin);
	compiled_bytes = at + (cubin_end - cubin);
}
// other appends the cubin as one for another architecture (sm_75).
static void other(void)
{
	static uint32_t copy[16 << 10];
	memcpy(copy, cubin, cubin_end - cubin);
	copy[12] = (copy[12] & ~0xff00u) | 75 << 8;
	append(2, 75, copy, cubin_end - cubin);
}
static void good(const void *code)
{
	load(code);
	are(0);
	MUST(run());
	are(1);
	IS(is_managed(turns), 1);
}
`

// TestManagedVariablesOfFatBinary loads a fat binary: PTX and the cubin. The library takes what it knows.
func TestManagedVariablesOfFatBinary(t *testing.T) {
	r, path := managedProgram(t, variablesSource+fatSource+`
int main(void)
{
	begin();
	append(1, 90, text, sizeof(text));
	other();
	append(2, 90, cubin, cubin_end - cubin);
	good(&wrapper);
	MUST(cuModuleUnload(module));
	good(&fat);
	printf("good\n");
}`, 256)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedVariablesCompiled hands over the variables of code that the driver has to compile: PTX alone, and, as nvcc makes it by default, a cubin for other devices with PTX.
func TestManagedVariablesCompiled(t *testing.T) {
	for _, code := range []string{"compiled", "&fat", "&wrapper"} {
		t.Run(code, func(t *testing.T) {
			r, path := managedProgram(t, variablesSource+fatSource+`
int main(void)
{
	char step[64];
	begin();
	compile();
	other();
	append(1, 75, compiled, compiled_bytes);
	good(`+code+`);
	for (uint64_t n = 1; next(step);) {
		MUST(run());
		are(++n);
		printf("done %s\n", step);
	}
	printf("over\n");
}`, 256)
			a := r.steps(path).app(r)
			a.does("run")
			for range 2 {
				pieces, files := a.take()
				if len(pieces) == 0 {
					t.Error("nothing was handed over")
				}
				a.back(pieces, files)
				a.does("run")
			}
			a.must(a.in.Close())
			a.says("over")
		})
	}
}

// TestManagedVariablesNotCompiled: where the driver does not compile for the library, the variables are the driver's. The program does not notice.
func TestManagedVariablesNotCompiled(t *testing.T) {
	r, path := managedProgram(t, variablesSource+fatSource+`
int main(void)
{
	char step[64];
	begin();
	compile();
	printf("ready\n");
	next(step);
	good(compiled);
	printf("good\n");
}`, 256)
	s := r.steps(path)
	s.says("ready")
	r.Order("cuLinkCreate_v2 * error 2")
	s.ask("go on")
	s.says("good")
}

// TestManagedVariablesOfDriver: where the library finds no addresses, or the driver does not load what the library has changed, the variables are the driver's, which cannot be saved. The program does not notice.
func TestManagedVariablesOfDriver(t *testing.T) {
	for _, order := range []string{"cuMemAddressReserve * error 2", "cuModuleLoadData * error 209"} {
		t.Run(order, func(t *testing.T) {
			r, path := managedProgram(t, variablesSource+`
int main(void)
{
	char step[64];
	begin();
	printf("ready\n");
	next(step);
	load(cubin);
	are(0);
	MUST(run());
	MUST(cuCtxSynchronize());
	are(1);
	printf("good\n");
	next(step);
}`, 256)
			s := r.steps(path)
			s.says("ready")
			r.Order(order)
			s.ask("go on")
			s.says("good")
			k, pid := newHelper(t, r), []int{s.cmd.Process.Pid}
			if got, err := k.Lock(t.Context(), pid, patient); err != nil || got[0].Code != 0 {
				t.Fatal(got, err)
			}
			if got, err := k.Checkpoint(t.Context(), pid); err != nil || got[0].Code != device.NotSupported {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// TestManagedVariablesLast: variables outlast the context that they were used in.
func TestManagedVariablesLast(t *testing.T) {
	r, path := managedProgram(t, variablesSource+`
int main(void)
{
	begin();
	load(cubin);
	MUST(run());
	MUST(cuCtxDestroy_v2(context));
	are(1);
	MUST(cuCtxCreate_v2(&context, 0, 0));
	*turns = 7;
	load(cubin); // the driver may have the same handle for it
	are(0);
	MUST(run());
	are(1);
	printf("good\n");
}`, 256)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}
