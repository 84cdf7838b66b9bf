// app: a container's program that fills device memory with a pattern and verifies every byte of it on demand.
//
//   app --gib N [--mode plain|async|pinned|managed] [--pattern random|regular] [--processes N]
//   app --probe
//
// It answers as ask.py describes, each of its processes in files of its own. Between questions it ticks: a kernel counts on the device,
// and the host counts along. Questions: "check"; "long SECONDS" starts a kernel of that length and answers at once.
// The patterns: random cannot be compressed; regular can, to about a thirtieth, and differs from page to page all the same.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kBlocks = 2048, kThreads = 256;
constexpr size_t kGiB = size_t(1) << 30;

__host__ __device__ inline uint64_t mix(uint64_t z) {  // splitmix64
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// word is what belongs at a place: one value a word, or eight different ones in each page of 512.
__host__ __device__ inline uint64_t word(uint64_t i, uint64_t seed, bool regular) {
  return regular ? mix((i >> 6) ^ seed) : mix(i ^ seed);
}

__global__ void fill(uint64_t *p, size_t n, uint64_t seed, bool regular) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    p[i] = word(i, seed, regular);
}

__global__ void compare(const uint64_t *p, size_t n, uint64_t seed, bool regular, unsigned long long *wrong) {
  unsigned long long own = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    own += p[i] != word(i, seed, regular);
  if (own) atomicAdd(wrong, own);
}

__global__ void increment(unsigned long long *counter) { ++*counter; }

__global__ void spin(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

std::string directory = "/srv";
int number = 0;  // of this process

void publish(const std::string &name, const std::string &text) {
  const std::string path = directory + "/" + name + "-" + std::to_string(number), fresh = path + ".new";
  FILE *f = fopen(fresh.c_str(), "w");
  if (f == nullptr) {
    perror(fresh.c_str());
    exit(4);
  }
  fputs(text.c_str(), f);
  fclose(f);
  rename(fresh.c_str(), path.c_str());
}

void must(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return;
  const std::string text = std::string(what) + ": " + cudaGetErrorName(err) + ": " + cudaGetErrorString(err);
  fprintf(stderr, "app: %s\n", text.c_str());
  publish("failed", text);
  exit(3);
}

struct Piece {
  uint64_t *memory;
  size_t words;
  uint64_t seed;
};

// State is what is to come through: device memory, pinned memory, and a counter on the device beside one on the host.
struct State {
  bool regular = false;
  std::vector<Piece> pieces;  // in device memory
  Piece pinned{};             // in host memory that the device reads as well
  unsigned long long *counter = nullptr, *wrong = nullptr;
  unsigned long long ticks = 0, seen = 0;
  double gap = 0;  // longest time between two ticks, seconds
  uint64_t life = 0;
  cudaStream_t stream = nullptr;
};

void allocate(State *s, double gib, const std::string &mode) {
  must(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "make a stream");
  if (mode == "async") {  // the pool keeps what is freed, as frameworks have it
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    must(cudaDeviceGetDefaultMemPool(&pool, 0), "find the pool");
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "set up the pool");
  }
  const size_t total = size_t(gib * double(kGiB)) / 4096 * 4096;
  for (size_t at = 0; at < total; at += kGiB) {
    const size_t bytes = std::min(kGiB, total - at);
    void *p = nullptr;
    if (mode == "async")
      must(cudaMallocAsync(&p, bytes, s->stream), "cudaMallocAsync");
    else if (mode == "managed")
      must(cudaMallocManaged(&p, bytes), "cudaMallocManaged");
    else
      must(cudaMalloc(&p, bytes), "cudaMalloc");
    s->pieces.push_back({static_cast<uint64_t *>(p), bytes / 8, mix(s->pieces.size() + 1000 * uint64_t(number))});
  }
  if (mode == "pinned") {
    const size_t bytes = std::min(total / 4, 4 * kGiB) / 4096 * 4096;
    void *p = nullptr;
    must(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), "cudaHostAlloc");
    s->pinned = {static_cast<uint64_t *>(p), bytes / 8, mix(77)};
    fill<<<kBlocks, kThreads, 0, s->stream>>>(s->pinned.memory, s->pinned.words, s->pinned.seed, s->regular);
  }
  for (const Piece &p : s->pieces) fill<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, s->regular);
  must(cudaMalloc(&s->counter, 8), "cudaMalloc");
  must(cudaMalloc(&s->wrong, 8), "cudaMalloc");
  must(cudaMemsetAsync(s->counter, 0, 8, s->stream), "clear");
  must(cudaStreamSynchronize(s->stream), "fill");
}

// check verifies everything on the device, the pinned memory on the host too, and that new memory can be had.
std::string check(State *s, bool *ok) {
  unsigned long long bad = 0, host = 0;
  size_t bytes = 8 * s->pinned.words;
  must(cudaMemsetAsync(s->wrong, 0, 8, s->stream), "clear");
  for (const Piece &p : s->pieces) {
    compare<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, s->regular, s->wrong);
    bytes += 8 * p.words;
  }
  if (s->pinned.words)
    compare<<<kBlocks, kThreads, 0, s->stream>>>(s->pinned.memory, s->pinned.words, s->pinned.seed, s->regular, s->wrong);
  must(cudaMemcpyAsync(&bad, s->wrong, 8, cudaMemcpyDeviceToHost, s->stream), "copy");
  must(cudaStreamSynchronize(s->stream), "compare");
  for (size_t i = 0; i < s->pinned.words; i++) host += s->pinned.memory[i] != word(i, s->pinned.seed, s->regular);

  void *p = nullptr;
  const size_t words = size_t(64) << 17;  // 64 MiB
  unsigned long long unfit = 0;
  must(cudaMallocAsync(&p, words * 8, s->stream), "allocate anew");
  must(cudaMemsetAsync(s->wrong, 0, 8, s->stream), "clear");
  fill<<<kBlocks, kThreads, 0, s->stream>>>(static_cast<uint64_t *>(p), words, 5, false);
  compare<<<kBlocks, kThreads, 0, s->stream>>>(static_cast<uint64_t *>(p), words, 5, false, s->wrong);
  must(cudaMemcpyAsync(&unfit, s->wrong, 8, cudaMemcpyDeviceToHost, s->stream), "copy");
  must(cudaFreeAsync(p, s->stream), "free");
  must(cudaStreamSynchronize(s->stream), "compare anew");

  *ok = bad == 0 && host == 0 && unfit == 0 && s->seen == s->ticks;
  char text[512];
  snprintf(text, sizeof text,
           "\"bytes\":%zu,\"wrong\":%llu,\"wrongOnHost\":%llu,\"wrongAnew\":%llu,\"ticks\":%llu,\"counter\":%llu,\"gap\":%.4f", bytes, bad, host, unfit,
           s->ticks, s->seen, s->gap);
  return text;
}

void answer(const State &s, unsigned long long sequence, bool ok, const std::string &fields) {
  char head[160];
  snprintf(head, sizeof head, "{\"seq\":%llu,\"ok\":%s,\"life\":\"%016llx\",\"pid\":%d", sequence, ok ? "true" : "false", (unsigned long long)s.life,
           int(getpid()));
  publish("answer", head + (fields.empty() ? "" : "," + fields) + "}\n");
}

void poll(State *s) {
  const std::string path = directory + "/ask-" + std::to_string(number);
  FILE *f = fopen(path.c_str(), "r");
  if (f == nullptr) return;
  unsigned long long sequence = 0;
  char command[32] = "";
  double argument = 0;
  const int n = fscanf(f, "%llu %31s %lf", &sequence, command, &argument);
  fclose(f);
  unlink(path.c_str());
  if (n < 2) return;
  bool ok = true;
  std::string fields;
  if (!strcmp(command, "check")) {
    fields = check(s, &ok);
  } else if (!strcmp(command, "long")) {
    spin<<<1, 1, 0, s->stream>>>(uint64_t(argument * 1e9));
    must(cudaGetLastError(), "launch the long kernel");
  } else {
    ok = false;
    fields = "\"error\":\"no such question\"";
  }
  answer(*s, sequence, ok, fields);
}

void run(double gib, const std::string &mode, bool regular) {
  State s;
  s.regular = regular;
  const int f = open("/dev/urandom", O_RDONLY);
  if (f < 0 || read(f, &s.life, sizeof s.life) != ssize_t(sizeof s.life)) exit(4);
  close(f);
  allocate(&s, gib, mode);
  answer(s, 0, true, "");
  for (double last = seconds();;) {
    increment<<<1, 1, 0, s.stream>>>(s.counter);
    s.ticks++;
    must(cudaMemcpyAsync(&s.seen, s.counter, 8, cudaMemcpyDeviceToHost, s.stream), "copy the counter");
    must(cudaStreamSynchronize(s.stream), "tick");
    const double now = seconds();
    if (s.ticks > 1) s.gap = std::max(s.gap, now - last);
    last = now;
    poll(&s);
    usleep(10000);
  }
}

}  // namespace

int main(int argc, char **argv) {
  double gib = 1;
  std::string mode = "plain";
  bool regular = false;
  int processes = 1;
  if (const char *d = getenv("WORK")) directory = d;
  for (int i = 1; i < argc; i++) {
    const std::string flag = argv[i];
    if (flag == "--probe") {
      int devices = 0;
      must(cudaGetDeviceCount(&devices), "count devices");
      printf("devices %d\n", devices);
      return 0;
    }
    if (i + 1 == argc) return 2;
    const std::string value = argv[++i];
    if (flag == "--gib")
      gib = atof(value.c_str());
    else if (flag == "--mode")
      mode = value;
    else if (flag == "--pattern")
      regular = value == "regular";
    else if (flag == "--processes")
      processes = atoi(value.c_str());
    else
      return 2;
  }
  for (int i = 1; i < processes; i++) {  // before CUDA is used: a context does not come through fork
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      number = i;
      break;
    }
  }
  run(gib, mode, regular);
}
