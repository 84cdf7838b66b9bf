// limits: a container's program whose kernels use as much local memory and stack as they may, and know what must come of it.
//
//   limits [--threads 4] [--mib 64]
//
// Threads of the host launch kernels without a pause, each on a stream of its own: directly, and by graphs that were made, uploaded and launched before
// the program says that it is there. Some kernels have an array of several KiB for each thread, which is in local memory; others call each other through
// pointers until so much of the stack is used as the limit allows (cudaLimitStackSize). Each result is compared with the host's.
//
// It answers as ask.py describes. Questions: "check" does the same for as many threads as the device has room for at once, and with a kernel that was not
// loaded before; "raise BYTES" sets the limit, and goes so much deeper from then on, also by new graphs.
#include "ask.cuh"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kSeeds = 4096;   // threads whose numbers are the same modulo this compute the same
constexpr unsigned kBlock = 128;    // threads in a block
constexpr int kFrame = 1024;        // words of the array: 4 KiB
constexpr size_t kSpare = 424;      // bytes of the limit that are left for what is not counted: frames of the kernel and of the deepest call
constexpr uint32_t kDeepest = 4000; // calls, whatever the stack looks like

// scramble goes over an array from place to place, as its contents say.
template <int N>
__host__ __device__ uint64_t scramble(uint32_t seed) {
  uint32_t a[N];
  for (int i = 0; i < N; i++) a[i] = uint32_t(i) * 2654435761u + seed;
  uint32_t x = seed;
  for (int i = 0; i < N; i++) {
    const uint32_t j = (x + a[i]) % uint32_t(N);
    x = x * 1664525u + a[j] + 1013904223u;
    a[j] = x ^ uint32_t(i);
  }
  return mix((uint64_t(x) << 32) | a[x % uint32_t(N)]);
}

template <int N>
__global__ void frame(uint64_t *out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = scramble<N>(i % kSeeds);
}

// A call goes on to the next while less than so many bytes lie between the top of the stack and its own array, and says at which level it ended.
using Call = uint64_t (*)(size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest);

__device__ uint64_t even(size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest);
__device__ uint64_t odd(size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest);

__device__ Call calls[2] = {even, odd};

__device__ __forceinline__ uint64_t descend(uint32_t kind, size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest) {
  volatile uint32_t own[8];
  for (uint32_t i = 0; i < 8; i++) own[i] = seed + 8 * level + i;
  uint64_t v = mix(seed);
  if (top - reinterpret_cast<size_t>(&own[0]) >= bytes || level == kDeepest)
    *deepest = level;
  else
    v = calls[(level + 1) & 1](top, bytes, seed, level + 1, deepest);
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 8; i++) sum += own[i];
  return mix(v ^ ((uint64_t(sum) << 8) | kind));
}

__device__ __noinline__ uint64_t even(size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest) {
  return descend(0, top, bytes, seed, level, deepest);
}

__device__ __noinline__ uint64_t odd(size_t top, size_t bytes, uint32_t seed, uint32_t level, uint32_t *deepest) {
  return descend(1, top, bytes, seed, level, deepest);
}

__global__ void recurse(const uint64_t *bytes, uint64_t *out, uint32_t *levels) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  volatile uint32_t mark[2];
  uint32_t deepest = 0;
  mark[0] = i;
  out[i] = calls[0](reinterpret_cast<size_t>(&mark[0]), size_t(*bytes), i % kSeeds, 0, &deepest);
  levels[i] = deepest;
}

// recursed is what recurse computes, where it has come to a level.
uint64_t recursed(uint32_t seed, uint32_t level, uint32_t deepest) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 8; i++) sum += seed + 8 * level + i;
  const uint64_t v = level == deepest ? mix(seed) : recursed(seed, level + 1, deepest);
  return mix(v ^ ((uint64_t(sum) << 8) | (level & 1)));
}

size_t limit() {
  size_t bytes = 0;
  must(cudaDeviceGetLimit(&bytes, cudaLimitStackSize), "ask for the limit");
  return bytes;
}

// Depth is how deep recurse goes.
struct Depth {
  uint64_t *bytes = nullptr;        // on the device
  uint32_t least = 0, level = 0;    // levels that it must reach; the one that it reached the first time, 0: it has not run yet
  std::vector<uint64_t> results;    // of that level, by seed
};

// Runner runs kernels on a stream, and compares.
struct Runner {
  unsigned blocks = 0;
  size_t threads = 0;
  cudaStream_t stream = nullptr;
  uint64_t *frames = nullptr, *values = nullptr, *copied_frames = nullptr, *copied_values = nullptr;
  uint32_t *levels = nullptr, *copied_levels = nullptr;
  std::vector<Depth> depths;            // the last one is what the limit allows now
  std::vector<cudaGraphExec_t> graphs;  // one for each depth
  std::vector<uint64_t> framed;         // results of frame, by seed
  unsigned long long wrong = 0;

  void begin(unsigned number_of_blocks) {
    blocks = number_of_blocks;
    threads = size_t(blocks) * kBlock;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    must(cudaMalloc(&frames, threads * 8), "cudaMalloc");
    must(cudaMalloc(&values, threads * 8), "cudaMalloc");
    must(cudaMalloc(&levels, threads * 4), "cudaMalloc");
    must(cudaHostAlloc(&copied_frames, threads * 8, cudaHostAllocDefault), "cudaHostAlloc");
    must(cudaHostAlloc(&copied_values, threads * 8, cudaHostAllocDefault), "cudaHostAlloc");
    must(cudaHostAlloc(&copied_levels, threads * 4, cudaHostAllocDefault), "cudaHostAlloc");
    for (uint32_t seed = 0; seed < kSeeds; seed++) framed.push_back(scramble<kFrame>(seed));
  }

  // launch puts everything into the stream.
  void launch(const uint64_t *bytes) {
    frame<kFrame><<<blocks, kBlock, 0, stream>>>(frames);
    must(cudaGetLastError(), "launch the kernel with an array");
    recurse<<<blocks, kBlock, 0, stream>>>(bytes, values, levels);
    must(cudaGetLastError(), "launch the kernel that recurses");
    must(cudaMemcpyAsync(copied_frames, frames, threads * 8, cudaMemcpyDeviceToHost, stream), "copy");
    must(cudaMemcpyAsync(copied_values, values, threads * 8, cudaMemcpyDeviceToHost, stream), "copy");
    must(cudaMemcpyAsync(copied_levels, levels, threads * 4, cudaMemcpyDeviceToHost, stream), "copy");
  }

  // deepen goes as deep as the limit allows from now on, and makes a graph that does so.
  void deepen(size_t allowed) {
    Depth d;
    const uint64_t bytes = allowed - kSpare;
    d.least = uint32_t(bytes / 256);
    must(cudaMalloc(&d.bytes, 8), "cudaMalloc");
    must(cudaMemcpy(d.bytes, &bytes, 8, cudaMemcpyHostToDevice), "copy");
    depths.push_back(d);
    step(0); // kernels are loaded before they are captured
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin a capture");
    launch(depths.back().bytes);
    must(cudaStreamEndCapture(stream, &graph), "end a capture");
    must(cudaGraphInstantiate(&made, graph, 0), "make a graph");
    must(cudaGraphUpload(made, stream), "upload a graph");
    must(cudaGraphDestroy(graph), "destroy a graph");
    graphs.push_back(made);
    step(graphs.size());
  }

  // step runs everything once: 0 by launches, as deep as possible, and else by that graph, counted from 1.
  void step(size_t by) {
    Depth &d = by ? depths[by - 1] : depths.back();
    memset(copied_frames, 0, threads * 8);
    memset(copied_values, 0, threads * 8);
    memset(copied_levels, 0, threads * 4);
    if (by)
      must(cudaGraphLaunch(graphs[by - 1], stream), "launch a graph");
    else
      launch(d.bytes);
    must(cudaStreamSynchronize(stream), by ? "wait for a graph" : "wait for kernels");
    if (d.level == 0) {
      d.level = copied_levels[0];
      for (uint32_t seed = 0; seed < kSeeds; seed++) d.results.push_back(recursed(seed, 0, d.level));
    }
    wrong += d.level < d.least || d.level == kDeepest;
    for (size_t i = 0; i < threads; i++) {
      wrong += copied_frames[i] != framed[i % kSeeds];
      wrong += copied_levels[i] != d.level || copied_values[i] != d.results[i % kSeeds];
    }
  }

  // fresh runs a kernel that has not been loaded before, as long as there are such.
  void fresh() {
    struct Kernel {
      void (*device)(uint64_t *);
      uint64_t (*host)(uint32_t);
    };
    static const Kernel kernels[] = {
        {frame<1280>, scramble<1280>}, {frame<1408>, scramble<1408>}, {frame<1536>, scramble<1536>}, {frame<1664>, scramble<1664>},
        {frame<1792>, scramble<1792>}, {frame<1920>, scramble<1920>}, {frame<2048>, scramble<2048>}, {frame<2176>, scramble<2176>},
    };
    static size_t next = 0;
    const Kernel &k = kernels[std::min(next++, sizeof kernels / sizeof *kernels - 1)];
    memset(copied_frames, 0, threads * 8);
    k.device<<<blocks, kBlock, 0, stream>>>(frames);
    must(cudaGetLastError(), "launch a kernel for the first time");
    must(cudaMemcpyAsync(copied_frames, frames, threads * 8, cudaMemcpyDeviceToHost, stream), "copy");
    must(cudaStreamSynchronize(stream), "wait for a kernel that ran for the first time");
    std::vector<uint64_t> results;
    for (uint32_t seed = 0; seed < kSeeds; seed++) results.push_back(k.host(seed));
    for (size_t i = 0; i < threads; i++) wrong += copied_frames[i] != results[i % kSeeds];
  }
};

std::atomic<size_t> least{0};    // of the limit, at any time
std::atomic<bool> hold{false};   // threads rest, while the limit is set
std::atomic<unsigned> resting{0};

struct Worker {
  Runner runner;
  std::atomic<unsigned long long> rounds{0}, wrong{0}, low{0};

  void run() {
    must(cudaSetDevice(0), "take the device");
    for (size_t n = 0;; n++) {
      if (hold) {
        resting++;
        while (hold) usleep(100);
        resting--;
      }
      runner.step(n % (1 + runner.graphs.size()));
      low += limit() < least;
      wrong = runner.wrong;
      rounds++;
    }
  }
};

struct State {
  std::vector<Worker *> workers;
  Runner all;            // as many threads as the device has room for at once
  uint64_t *memory = nullptr;
  size_t words = 0;
  unsigned long long *found = nullptr;
  size_t seen = 0;       // the limit, when it was asked for last
};

void deepen(State *s) {
  s->seen = limit();
  least = s->seen;
  for (Worker *w : s->workers) w->runner.deepen(s->seen);
  s->all.deepen(s->seen);
  s->seen = limit();
}

void raise(State *s, size_t bytes) {
  hold = true;
  while (resting != s->workers.size()) usleep(100);
  must(cudaDeviceSetLimit(cudaLimitStackSize, bytes), "set the limit");
  deepen(s);
  hold = false;
  while (resting) usleep(100);
}

std::string check(State *s, bool *ok) {
  const size_t before = limit();
  std::vector<unsigned long long> rounds;
  for (const Worker *w : s->workers) rounds.push_back(w->rounds);
  for (size_t by = 0; by <= s->all.graphs.size(); by++) s->all.step(by);
  s->all.fresh();
  s->all.step(0);

  unsigned long long bad = 0, wrong = 0, low = 0, done = 0;
  must(cudaMemsetAsync(s->found, 0, sizeof *s->found, s->all.stream), "clear");
  compare<<<kBlocks, kThreads, 0, s->all.stream>>>(s->memory, s->words, 7, true, s->found);
  must(cudaMemcpyAsync(&bad, s->found, sizeof bad, cudaMemcpyDeviceToHost, s->all.stream), "copy");
  must(cudaStreamSynchronize(s->all.stream), "compare");
  for (size_t i = 0; i < s->workers.size(); i++) {
    const Worker *w = s->workers[i];
    while (w->rounds < rounds[i] + 2) usleep(500);
    wrong += w->wrong, low += w->low, done += w->rounds;
  }
  *ok = bad == 0 && wrong == 0 && low == 0 && s->all.wrong == 0 && before == s->seen;
  char text[320];
  snprintf(text, sizeof text,
           "\"limit\":%zu,\"limitBefore\":%zu,\"timesLower\":%llu,\"level\":%u,\"threads\":%zu,\"wrongBytes\":%llu,\"wrong\":%llu,\"wrongInThreads\":%llu,"
           "\"rounds\":%llu",
           before, s->seen, low, s->all.depths.back().level, s->all.threads, bad, s->all.wrong, wrong, done);
  s->seen = limit();
  return text;
}

}  // namespace

int main(int argc, char **argv) {
  int threads = 4, processors = 0, most = 0;
  size_t mib = 64;
  if (const char *d = getenv("WORK")) directory = d;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads")
      threads = atoi(argv[i + 1]);
    else if (flag == "--mib")
      mib = size_t(atol(argv[i + 1]));
    else
      return 2;
  }
  must(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "ask for processors");
  must(cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerMultiProcessor, 0), "ask for threads");
  State s;
  s.words = mib << 17;
  must(cudaMalloc(&s.memory, s.words * 8), "cudaMalloc");
  must(cudaMalloc(&s.found, sizeof *s.found), "cudaMalloc");
  fill<<<kBlocks, kThreads>>>(s.memory, s.words, 7, true);
  must(cudaDeviceSynchronize(), "fill");
  s.all.begin(unsigned(processors * (most / int(kBlock))));
  for (int i = 0; i < threads; i++) {
    s.workers.push_back(new Worker);
    s.workers.back()->runner.begin(64);
  }
  deepen(&s);
  for (Worker *w : s.workers) std::thread(&Worker::run, w).detach();
  for (const Worker *w : s.workers)
    while (w->rounds < 4) usleep(1000);
  ready();
  for (;; usleep(5000)) {
    Question q;
    if (!asked(&q)) continue;
    bool ok = true;
    std::string fields;
    if (q.word == "check") {
      fields = check(&s, &ok);
    } else if (q.word == "raise") {
      raise(&s, size_t(q.argument));
      ok = s.seen >= size_t(q.argument);
      fields = "\"limit\":" + std::to_string(s.seen);
    } else {
      ok = false, fields = "\"error\":\"no such question\"";
    }
    answer(q.sequence, ok, fields);
  }
}
