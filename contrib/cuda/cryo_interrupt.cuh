// cryo_interrupt.cuh: kernels of minutes that return early when a snapshot is asked for. See README.md beside it.
//
//   CRYO_KERNEL(name, parameters...) { ... }   defines one, a __global__ function; "template <...>" may stand before it
//   CRYO_INTERRUPTED()                         in it: this thread shall save its progress and leave
//   CRYO_INTERRUPTED_BLOCK()                   the same, one answer for the block; a barrier that all its threads must reach
//   CRYO_LEAVE()                               return with work left
//   CRYO_LAUNCH(name, grid, block, shared, stream, arguments...)
//                                              run it until no thread left with work; a cudaError_t
//   CRYO_LAUNCHES(), CRYO_RETURNS()            launches of this process so far, and how many of them returned early
//
// At the first launch it makes a page of shared memory, a memfd named cryo-interrupt, and registers it with CUDA as mapped host memory for all devices.
// cryo finds it in /proc/PID/maps (16 pages a process at most), checks it, and raises its flag before it asks the driver for its lock. It lowers the flag
// when the process is locked, or the checkpoint failed. When a kernel has left, CRYO_LAUNCH sleeps, outside of CUDA, until the flag is down. Its next
// launch then waits in the driver until the process is unlocked: here, or after a restore.
//
// A flag that stays up holds for its lease (a minute, or longer with a longer deadline). The program counts it in sleeps of its own, then lowers the flag.
// CRIU saves the page as shared memory and makes it again at its address; the driver's checkpoint has the registration. cryo lowers a flag that is up in
// a snapshot after the restore. A child of fork makes a page of its own, and after cudaDeviceReset the page is registered again, at the next launch.
//
// The program runs the same without cryo. After the idea of soft interrupts: M. Baird, C. Fensch, S.-B. Scholz,
// A. Šinkarovs: A Lightweight Approach to GPU Resilience, Euro-Par 2018 Workshops, doi:10.1007/978-3-030-10549-5_64.
//
// C++11 or later, nvcc or clang, Linux.
// SPDX-License-Identifier: Apache-2.0
#ifndef CRYO_INTERRUPT_CUH
#define CRYO_INTERRUPT_CUH

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CRYO_KERNEL(name, ...) __global__ void name(::cryo::interrupt cryo_interrupt_, __VA_ARGS__)

#define CRYO_INTERRUPTED() (cryo_interrupt_.raised())

#define CRYO_INTERRUPTED_BLOCK() \
  (__syncthreads_or(threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0 && cryo_interrupt_.raised()) != 0)

#define CRYO_LEAVE()         \
  do {                       \
    cryo_interrupt_.leave(); \
    return;                  \
  } while (0)

#define CRYO_LAUNCH(kernel, grid, block, shared, stream, ...) \
  (::cryo::launch(kernel, grid, block, shared, stream, __VA_ARGS__))

#define CRYO_LAUNCHES() (::cryo::count(&::cryo::page::launches))
#define CRYO_RETURNS() (::cryo::count(&::cryo::page::returns))

namespace cryo {

// What a launch's slot says.
enum : uint32_t { slot_free = 0, slot_taken = 1, slot_unfinished = 2 };

// page is what cryo finds from outside, by the name of its memory in /proc/PID/maps: version 1 of the layout, in the byte
// order of the machine. cryo writes flag and lease, the program writes the rest.
struct page {
  enum : uint32_t { current = 1, slots = 992 };
  char magic[8];         // "CRYOINTR"
  uint32_t version;      // current
  uint32_t reserved;     // 0
  uint32_t flag;         // 1: kernels shall return early, and none is launched
  uint32_t lease;        // milliseconds after which the program lowers the flag itself: whoever raised it may have died
  uint32_t running;      // kernels that are launched and not known to have ended
  uint32_t waiting;      // threads that wait for the flag to be lowered
  uint64_t launches;     // so far
  uint64_t returns;      // of these, those that returned early
  char reserved2[80];    // 0
  uint32_t slot[slots];  // of one CRYO_LAUNCH each; kernels write here
};

static_assert(offsetof(page, magic) == 0, "layout of version 1");
static_assert(offsetof(page, version) == 8, "layout of version 1");
static_assert(offsetof(page, flag) == 16, "layout of version 1");
static_assert(offsetof(page, lease) == 20, "layout of version 1");
static_assert(offsetof(page, running) == 24, "layout of version 1");
static_assert(offsetof(page, waiting) == 28, "layout of version 1");
static_assert(offsetof(page, launches) == 32, "layout of version 1");
static_assert(offsetof(page, returns) == 40, "layout of version 1");
static_assert(offsetof(page, slot) == 128, "layout of version 1");
static_assert(sizeof(page) == 4096, "layout of version 1");

// interrupt is a kernel's first parameter. Its memory is the host's: volatile, so that each look goes there.
struct interrupt {
  const volatile uint32_t *flag;
  volatile uint32_t *slot;
#ifdef __CUDACC__
  __device__ bool raised() const { return *flag != 0; }
  __device__ void leave() const { *slot = slot_unfinished; }
#endif
};

// memory is the page of one process.
struct memory {
  pid_t owner;
  page *host;
  std::atomic<bool> registered;
};

inline size_t memory_size() {
  const size_t unit = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return unit > sizeof(page) ? unit : sizeof(page);
}

// memory_new gives null if the system refuses. The page has its contents before it has an address, so that nobody finds it
// half made, and it has no descriptor: the program's own bookkeeping of descriptors is left alone.
inline memory *memory_new() {
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "cryo-interrupt", 1u /* MFD_CLOEXEC */));
  if (fd < 0) return nullptr;
  page first = {{'C', 'R', 'Y', 'O', 'I', 'N', 'T', 'R'}, page::current, 0, 0, 0, 0, 0, 0, 0, {0}, {0}};
  void *at = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(memory_size())) == 0 &&
      write(fd, &first, sizeof first) == static_cast<ssize_t>(sizeof first))
    at = mmap(nullptr, memory_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return nullptr;
  // A child of fork cannot use its parent's CUDA, and must not answer for it.
  memory *m = madvise(at, memory_size(), MADV_DONTFORK) == 0 ? new (std::nothrow) memory : nullptr;
  if (m == nullptr) {
    munmap(at, memory_size());
    return nullptr;
  }
  m->owner = getpid();
  m->host = static_cast<page *>(at);
  m->registered = false;
  return m;
}

// memory_own gives this process's page, made at its first call. After fork the child gets one of its own. There is no lock,
// which a thread could hold at a fork.
inline memory *memory_own(bool make) {
  static std::atomic<memory *> known(nullptr);
  memory *m = known.load();
  const bool own = m != nullptr && m->owner == getpid();
  if (own || !make) return own ? m : nullptr;
  memory *fresh = memory_new();
  if (fresh == nullptr || known.compare_exchange_strong(m, fresh)) return fresh;
  munmap(fresh->host, memory_size());
  delete fresh;
  return m;  // of the thread that was faster
}

// memory_device gives the page's address on the current device. Registered once it counts for all devices; cudaDeviceReset
// undoes that, which is noticed here.
inline cudaError_t memory_device(memory *m, page **device) {
  for (bool again = false;; again = true) {
    if (m->registered) {
      void *at = nullptr;
      const cudaError_t err = cudaHostGetDevicePointer(&at, m->host, 0);
      *device = static_cast<page *>(at);
      if (err == cudaSuccess || again) return err;
      cudaGetLastError();
    }
    const cudaError_t err = cudaHostRegister(m->host, memory_size(), cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (err == cudaErrorHostMemoryAlreadyRegistered)
      cudaGetLastError();  // another thread was faster
    else if (err != cudaSuccess)
      return err;
    m->registered = true;
  }
}

inline uint32_t load(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
inline void store(uint32_t *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
inline void add(uint32_t *at, int32_t n) { __atomic_fetch_add(at, static_cast<uint32_t>(n), __ATOMIC_SEQ_CST); }
inline void add(uint64_t *at, int32_t n) { __atomic_fetch_add(at, static_cast<uint64_t>(n), __ATOMIC_SEQ_CST); }

inline void sleep_millisecond() {
  const timespec time = {0, 1000000};
  nanosleep(&time, nullptr);
}

// wait_lowered returns when the flag is down. It counts its own sleeps: clocks jump when a process is frozen or goes on
// on another host. It makes no CUDA call, so that the driver's lock finds none in progress.
inline void wait_lowered(page *p) {
  if (load(&p->flag) == 0) return;
  add(&p->waiting, 1);
  for (uint32_t waited = 0; load(&p->flag) != 0; waited++) {
    if (waited >= load(&p->lease)) {
      store(&p->flag, 0);
      break;
    }
    sleep_millisecond();
  }
  add(&p->waiting, -1);
}

// slot_take waits for a free slot if there are more concurrent launches than slots.
inline uint32_t slot_take(page *p) {
  for (;; sleep_millisecond())
    for (uint32_t i = 0; i < page::slots; i++) {
      uint32_t expected = slot_free;
      if (__atomic_compare_exchange_n(&p->slot[i], &expected, static_cast<uint32_t>(slot_taken), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST))
        return i;
    }
}

// launch_once launches a kernel and waits until it ended. Then its slot says whether work is left.
inline cudaError_t launch_once(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  const cudaError_t err = cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
  return err == cudaSuccess ? cudaStreamSynchronize(stream) : err;
}

template <class T>
struct exactly {
  typedef T type;
};

// launch runs a kernel on the current device until no thread of it left with work.
template <class... P>
cudaError_t launch(void (*kernel)(interrupt, P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   typename exactly<P>::type... arguments) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t err = cudaStreamIsCapturing(stream, &capture);
  if (err != cudaSuccess) return err;
  if (capture != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;  // a graph cannot launch again
  memory *m = memory_own(true);
  if (m == nullptr) return cudaErrorOperatingSystem;
  page *device = nullptr;
  if ((err = memory_device(m, &device)) != cudaSuccess) return err;
  page *p = m->host;
  const uint32_t slot = slot_take(p);
  interrupt first = {&device->flag, &device->slot[slot]};
  void *all[] = {&first, &arguments...};
  for (bool left = true; left && err == cudaSuccess;) {
    wait_lowered(p);
    store(&p->slot[slot], slot_taken);
    add(&p->launches, 1);
    add(&p->running, 1);
    err = launch_once(reinterpret_cast<const void *>(kernel), grid, block, all, shared, stream);
    add(&p->running, -1);
    left = load(&p->slot[slot]) == slot_unfinished;
    if (left) add(&p->returns, 1);
  }
  store(&p->slot[slot], slot_free);
  return err;
}

// count reads a count of this process.
inline uint64_t count(uint64_t page::*which) {
  memory *m = memory_own(false);
  return m == nullptr ? 0 : __atomic_load_n(&(m->host->*which), __ATOMIC_SEQ_CST);
}

}  // namespace cryo

#endif
