// example: kernels of minutes that may be interrupted at any time and end with the right result.
//
//   nvcc -O2 -std=c++11 -o example example.cu
//   ./example [SECONDS [STREAMS [DEVICES]]]      120 s, 2 streams on each of 1 device
//
// Each GPU thread walks a linear congruential generator, x -> a x + c modulo 2^64, billions of steps one by one. The CPU
// knows where it must arrive at once, since such steps can be squared. It prints its progress each second, and as its last
// line "OK" or "BAD" with the number of launches and of early returns. Exit status 0: OK, 1: BAD, 2: CUDA failed.
// Even streams ask for each thread, odd ones for each block.
#include "cryo_interrupt.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kA = 6364136223846793005u, kC = 1442695040888963407u;
constexpr unsigned kBlocks = 32, kThreads = 128;
constexpr uint64_t kChunk = 1u << 15;  // steps between two looks at the flag: below a millisecond

struct Walk {
  uint64_t value, step;
};

// walk takes every thread to the given number of steps. shown is for people: how far the first thread is.
template <bool kByBlock>
CRYO_KERNEL(walk, Walk *all, uint64_t steps, volatile uint64_t *shown) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  Walk own = all[index];  // where the launch before left it
  while (own.step < steps) {
    if (kByBlock ? CRYO_INTERRUPTED_BLOCK() : CRYO_INTERRUPTED()) {
      all[index] = own;
      CRYO_LEAVE();
    }
    const uint64_t end = steps - own.step > kChunk ? own.step + kChunk : steps;
    for (; own.step < end; own.step++) own.value = own.value * kA + kC;
    if (index == 0) *shown = own.step;
  }
  all[index] = own;
}

uint64_t seed(unsigned stream, unsigned index) { return (uint64_t(stream) << 32 | index) * 0x9e3779b97f4a7c15u + 1; }

// jump gives a and c of the given number of steps made as one.
void jump(uint64_t steps, uint64_t *a, uint64_t *c) {
  uint64_t powerA = kA, powerC = kC;
  for (*a = 1, *c = 0; steps != 0; steps >>= 1) {
    if (steps & 1) {
      *c = powerA * *c + powerC;
      *a = powerA * *a;
    }
    powerC = powerA * powerC + powerC;
    powerA = powerA * powerA;
  }
}

void must(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return;
  printf("%s: %s\n", what, cudaGetErrorString(err));
  fflush(stdout);
  _exit(2);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t launch(unsigned stream, cudaStream_t on, Walk *device, uint64_t steps, volatile uint64_t *shown) {
  return stream % 2 == 0 ? CRYO_LAUNCH(walk<false>, kBlocks, kThreads, 0, on, device, steps, shown)
                         : CRYO_LAUNCH(walk<true>, kBlocks, kThreads, 0, on, device, steps, shown);
}

// rate measures how many steps a second a thread makes, with all streams' kinds of kernel.
double rate(Walk *device, volatile uint64_t *shown) {
  const uint64_t steps = 1u << 24;
  double best = 0;
  for (int i = 0; i < 3; i++) {
    must(cudaMemset(device, 0, sizeof(Walk) * kBlocks * kThreads), "clear");
    const double begin = now();
    must(launch(i, nullptr, device, steps, shown), "measure");
    best = std::max(best, steps / (now() - begin));
  }
  return best;
}

// run walks on one stream of one device and counts the threads that arrived elsewhere.
unsigned run(unsigned stream, int device, uint64_t steps, volatile uint64_t *shown) {
  std::vector<Walk> walks(kBlocks * kThreads);
  for (unsigned i = 0; i < walks.size(); i++) walks[i] = Walk{seed(stream, i), 0};
  const size_t bytes = walks.size() * sizeof(Walk);
  Walk *memory = nullptr;
  cudaStream_t on = nullptr;
  must(cudaSetDevice(device), "choose the device");
  must(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking), "make a stream");
  must(cudaMalloc(&memory, bytes), "allocate");
  must(cudaMemcpy(memory, walks.data(), bytes, cudaMemcpyHostToDevice), "copy in");
  must(launch(stream, on, memory, steps, shown), "walk");
  must(cudaMemcpy(walks.data(), memory, bytes, cudaMemcpyDeviceToHost), "copy out");
  must(cudaFree(memory), "free");
  must(cudaStreamDestroy(on), "end the stream");
  uint64_t a = 0, c = 0;
  jump(steps, &a, &c);
  unsigned wrong = 0;
  for (unsigned i = 0; i < walks.size(); i++)
    wrong += walks[i].step != steps || walks[i].value != seed(stream, i) * a + c;
  return wrong;
}

}  // namespace

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 120;
  const unsigned streams = argc > 2 ? unsigned(atoi(argv[2])) : 2, devices = argc > 3 ? unsigned(atoi(argv[3])) : 1;
  const unsigned all = streams * devices;
  uint64_t *shown = nullptr;
  Walk *memory = nullptr;
  must(cudaHostAlloc(&shown, (all + 1) * sizeof *shown, cudaHostAllocPortable | cudaHostAllocMapped), "allocate");
  std::fill(shown, shown + all + 1, 0);
  must(cudaMalloc(&memory, sizeof(Walk) * kBlocks * kThreads), "allocate");
  const uint64_t steps = uint64_t(seconds * rate(memory, shown + all)) + 1;
  must(cudaFree(memory), "free");
  const unsigned long long before = CRYO_LAUNCHES();
  printf("start pid=%d streams=%u devices=%u steps=%llu\n", int(getpid()), streams, devices, (unsigned long long)steps);
  fflush(stdout);

  std::atomic<unsigned> wrong(0), ended(0);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < all; i++)
    threads.emplace_back([&, i] {
      wrong += run(i, int(i / streams), steps, shown + i);
      ended++;
    });
  while (ended < all) {
    for (int i = 0; i < 10 && ended < all; i++) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    uint64_t slowest = steps;
    for (unsigned i = 0; i < all; i++) {
      const uint64_t at = static_cast<volatile uint64_t *>(shown)[i];
      slowest = std::min(slowest, at);
    }
    printf("progress %.1f%% launches=%llu returns=%llu\n", 100.0 * slowest / steps, CRYO_LAUNCHES() - before,
           (unsigned long long)CRYO_RETURNS());
    fflush(stdout);
  }
  for (std::thread &t : threads) t.join();
  printf("%s launches=%llu returns=%llu wrong=%u\n", wrong == 0 ? "OK" : "BAD", CRYO_LAUNCHES() - before,
         (unsigned long long)CRYO_RETURNS(), wrong.load());
  return wrong == 0 ? 0 : 1;
}
