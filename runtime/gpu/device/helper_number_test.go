package device

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/gputest"
)

// importer prints what becomes of memory of each of its devices that it imports itself, and that another process imports, after it was moved
// from the GPUs that its first argument lists to those of the second; and once more after a checkpoint and restore without pairs. It says
// the error, or the device where the memory is said to be.
const importer = `
#define _GNU_SOURCE
#include "cuda.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE ((size_t)2 << 20)

static const char *host, *before, *after;

static void fail(const char *what, int code) { fprintf(stderr, "%s: %d\n", what, code); exit(1); }
static void must(const char *what, int code) { if (code) fail(what, code); }

static CUuuid uuid(char gpu) { return (CUuuid){{0, 0, 0, gpu - '0' + 1, 0, 0, 0x40, 0, (char)0x80, 0, 0, 0, 0, 0, 0, 0x0a}}; }

// see has some GPUs in /dev, and no others.
static void see(const char *gpus)
{
	must("mount", mount("none", "/dev", "tmpfs", 0, NULL));
	must("mkdir", mkdir("/dev/fakegpu", 0755));
	for (; *gpus; gpus++) {
		char name[64], link[128], from[512], node[32];
		int minor, fd;
		FILE *f;

		snprintf(name, sizeof(name), "GPU-%08x-0000-4000-8000-00000000000a", *gpus - '0' + 1);
		snprintf(link, sizeof(link), "/dev/fakegpu/%s", name);
		snprintf(from, sizeof(from), "%s/%s", host, name);
		must("symlink", symlink(from, link));
		strcat(from, "/minor");
		f = fopen(from, "r");
		if (!f)
			continue;
		if (fscanf(f, "%d", &minor) != 1)
			fail(from, 0);
		fclose(f);
		snprintf(node, sizeof(node), "/dev/nvidia%d", minor);
		fd = open(node, O_CREAT | O_WRONLY, 0600);
		if (fd < 0)
			fail(node, 0);
		close(fd);
	}
}

static void there_and_back(const char *from, const char *to)
{
	CUcheckpointGpuPair pairs[16];
	CUcheckpointRestoreArgs args = {.gpuPairs = pairs};

	must("lock", cuCheckpointProcessLock(getpid(), NULL));
	must("checkpoint", cuCheckpointProcessCheckpoint(getpid(), NULL));
	see(to);
	for (int move = strcmp(from, to); move && *from; from++, to++)
		pairs[args.gpuPairsCount++] = (CUcheckpointGpuPair){uuid(*from), uuid(*to)};
	must("restore", cuCheckpointProcessRestore(getpid(), &args));
	must("unlock", cuCheckpointProcessUnlock(getpid(), NULL));
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, int device)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr p;

	must("reserve", cuMemAddressReserve(&p, PIECE, 0, 0, 0));
	must("map", cuMemMap(p, PIECE, 0, handle, 0));
	must("access", cuMemSetAccess(p, PIECE, &access, 1));
	return p;
}

static void drop(CUmemGenericAllocationHandle handle, CUdeviceptr p)
{
	must("unmap", cuMemUnmap(p, PIECE));
	must("free", cuMemAddressFree(p, PIECE));
	must("release", cuMemRelease(handle));
}

// imported is the error, or the device where the memory is said to be. It can be used by any.
static int imported(int fd, CUmemGenericAllocationHandle *handle, CUdeviceptr *p, int device)
{
	CUmemAllocationProp prop = {0};
	CUcontext context;
	CUresult r = cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	char byte = 0;

	if (r)
		return r;
	must("properties", cuMemGetAllocationPropertiesFromHandle(&prop, *handle));
	if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED || prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		fail("properties of what was imported", prop.type);
	must("context", cuDevicePrimaryCtxRetain(&context, device));
	must("current", cuCtxSetCurrent(context));
	*p = mapped(*handle, device);
	must("read", cuMemcpyDtoH_v2(&byte, *p + 7, 1));
	if (byte != 42)
		fail("what was read", byte);
	return prop.location.id;
}

static void fresh(int fd, int device)
{
	CUmemGenericAllocationHandle handle;
	int status, pid;
	CUdeviceptr p;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		must("init", cuInit(0));
		printf(" %d", imported(fd, &handle, &p, device));
		exit(0);
	}
	waitpid(pid, &status, 0);
	must("another process", status);
}

static void try(int device)
{
	CUmemAllocationProp found, prop = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_DEVICE, device}, NULL, {0}};
	CUmemGenericAllocationHandle own, handle;
	CUdeviceptr p, q = 0;
	CUcontext context;
	int fd, where;

	must("context", cuDevicePrimaryCtxRetain(&context, device));
	must("current", cuCtxSetCurrent(context));
	must("create", cuMemCreate(&own, PIECE, &prop, 0));
	must("properties", cuMemGetAllocationPropertiesFromHandle(&found, own));
	if (memcmp(&found, &prop, sizeof(prop)))
		fail("properties of what was made", found.location.id);
	p = mapped(own, device);
	must("fill", cuMemsetD8_v2(p, 42, PIECE));
	must("export", cuMemExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	where = imported(fd, &handle, &q, device);
	printf(" %d", where);
	fresh(fd, device);
	printf(",");
	close(fd);
	drop(own, p);
	if (q)
		drop(handle, q);
}

int main(int count, char **argument)
{
	if (count != 4)
		return 2;
	host = argument[1], before = argument[2], after = argument[3];
	must("unshare", unshare(CLONE_NEWNS));
	must("private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	see(before);
	must("init", cuInit(0));
	there_and_back(before, after);
	for (int round = 0; round < 2; round++) {
		for (size_t device = 0; device < strlen(before); device++) {
			CUuuid is, want = uuid(after[device]);

			must("UUID", cuDeviceGetUuid(&is, device));
			if (memcmp(&is, &want, sizeof(is)))
				fail("it is on another GPU: device", device);
			try(device);
		}
		there_and_back(after, after);
	}
	return 0;
}
`

// TestNumbersStay is the fake driver's likeness to the real one after a move: imported memory is found by the numbers that GPUs had at first.
func TestNumbersStay(t *testing.T) {
	r := newRig(t, 4)
	for i, minor := range []string{"0", "1", "0", ""} { // the third GPU is as on another host
		known := fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000a", i+1) // to the importer
		if err := os.Rename(filepath.Join(r.Dir, r.Devices[i]), filepath.Join(r.Dir, known)); err != nil {
			t.Fatal(err)
		}
		r.Devices[i] = known
		if minor != "" {
			r.Write(filepath.Join(r.Devices[i], "minor"), minor)
			r.Write(filepath.Join(r.Devices[i], "number"), minor)
		}
	}
	path := filepath.Join(t.TempDir(), "importer")
	if err := os.WriteFile(path+".c", []byte(importer), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"-Wall", "-Wextra", "-Werror", "-I", "../../../integration/fakecuda", "-o", path, path + ".c", "-L", gputest.Bin("fakecuda"), "-l:libcuda.so.1"}
	if out, err := exec.Command("gcc", flags...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	for _, test := range []struct{ name, before, after, want string }{
		{"where they were", "01", "01", " 0 0, 1 1,"},
		{"another number", "0", "1", " 101 0,"},
		{"swapped", "01", "10", " 1 1, 0 0,"},
		{"the same number", "0", "2", " 0 0,"},
		{"one of two", "01", "21", " 0 0, 1 1,"},
		{"no number", "0", "3", " 0 0,"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := exec.Command(path, r.Dir, test.before, test.after)
			c.Env = []string{"LD_LIBRARY_PATH=" + gputest.Bin("fakecuda")}
			var stderr strings.Builder
			c.Stderr = &stderr
			out, err := c.Output()
			if err != nil || string(out) != test.want+test.want {
				t.Errorf("%q twice is wanted, got %q, %v: %s", test.want, out, err, &stderr)
			}
			for i := range r.Devices {
				if n := r.Files(i); n != 0 {
					t.Errorf("%d files of memory are left on GPU %d", n, i)
				}
			}
		})
	}
}
