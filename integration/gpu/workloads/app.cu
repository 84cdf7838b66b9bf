// app: a container's program that fills device memory with a pattern and verifies every byte of it on demand.
//
//   app --gib N [--mode plain|async|mixed|pinned|managed] [--pattern random|regular] [--random N] [--churn N] [--processes N] [--devices N]
//   app --probe
//
// It answers as ask.py describes, each of its processes in files of its own. Between questions it ticks: a kernel counts on the device,
// and the host counts along. Questions: "check"; "long SECONDS" starts a kernel of that length and answers at once; "copy" copies from the first device
// to the last. Memory of the mode mixed is plain and of the pool in turn, a GiB each. Of several devices each has its part, and no access to another's.
// With --random, so many GiB of what is regular otherwise are random. With --churn, so many GiB more are written all the time, 64 MiB of them at each tick, and compared before.
// The patterns: random cannot be compressed; regular can, to about a thirtieth, and differs from page to page all the same.
#include "ask.cuh"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <vector>

namespace {

__global__ void increment(unsigned long long *counter) { ++*counter; }

__global__ void spin(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

struct Piece {
  uint64_t *memory;
  size_t words;
  uint64_t seed;
  bool regular;
};

// State is what is to come through on one device: its memory, pinned memory, and a counter on the device beside one on the host.
struct State {
  int device = 0;
  bool regular = false;
  std::vector<Piece> pieces;  // in device memory
  std::vector<Piece> churn;   // the same, which are written all the time
  unsigned long long *damaged = nullptr;  // words of those that were not as they were written
  Piece pinned{};             // in host memory that the device reads as well
  unsigned long long *counter = nullptr, *wrong = nullptr;
  unsigned long long ticks = 0, seen = 0;
  double gap = 0;  // longest time between two ticks, seconds
  cudaStream_t stream = nullptr;
};

// Found is what is found when everything is verified, of all devices.
struct Found {
  size_t bytes = 0;
  unsigned long long wrong = 0, onHost = 0, anew = 0, ticks = 0, counter = 0;
};

constexpr size_t kChurn = size_t(64) << 20;

void allocate(State *s, double gib, const std::string &mode, double random, double churn) {
  must(cudaSetDevice(s->device), "use a device");
  must(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "make a stream");
  if (mode == "async" || mode == "mixed") {  // the pool keeps what is freed, as frameworks have it
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    must(cudaDeviceGetDefaultMemPool(&pool, s->device), "find the pool");
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "set up the pool");
  }
  const size_t total = size_t(gib * double(kGiB)) / 4096 * 4096;
  for (size_t at = 0; at < total; at += kGiB) {
    const size_t bytes = std::min(kGiB, total - at);
    void *p = nullptr;
    if (mode == "async" || (mode == "mixed" && s->pieces.size() % 2 == 1))
      must(cudaMallocAsync(&p, bytes, s->stream), "cudaMallocAsync");
    else if (mode == "managed")
      must(cudaMallocManaged(&p, bytes), "cudaMallocManaged");
    else
      must(cudaMalloc(&p, bytes), "cudaMalloc");
    s->pieces.push_back({static_cast<uint64_t *>(p), bytes / 8, mix(s->pieces.size() + 1000 * uint64_t(number) + 1000000 * uint64_t(s->device)), s->regular && double(at) >= random * double(kGiB)});
  }
  if (mode == "pinned") {
    const size_t bytes = std::min(total / 4, 4 * kGiB) / 4096 * 4096;
    void *p = nullptr;
    must(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), "cudaHostAlloc");
    s->pinned = {static_cast<uint64_t *>(p), bytes / 8, mix(77), s->regular};
    fill<<<kBlocks, kThreads, 0, s->stream>>>(s->pinned.memory, s->pinned.words, s->pinned.seed, s->pinned.regular);
  }
  for (size_t at = 0; at < size_t(churn * double(kGiB)); at += kChurn) {
    void *p = nullptr;
    must(cudaMalloc(&p, kChurn), "cudaMalloc");
    s->churn.push_back({static_cast<uint64_t *>(p), kChurn / 8, mix(at + 7), false});
  }
  for (const auto *all : {&s->pieces, &s->churn})
    for (const Piece &p : *all) fill<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, p.regular);
  must(cudaMalloc(&s->damaged, 8), "cudaMalloc");
  must(cudaMemsetAsync(s->damaged, 0, 8, s->stream), "clear");
  must(cudaMalloc(&s->counter, 8), "cudaMalloc");
  must(cudaMalloc(&s->wrong, 8), "cudaMalloc");
  must(cudaMemsetAsync(s->counter, 0, 8, s->stream), "clear");
  must(cudaStreamSynchronize(s->stream), "fill");
}

// check verifies everything on a device, the pinned memory on the host too, and that new memory can be had.
void check(const State *s, Found *found) {
  must(cudaSetDevice(s->device), "use a device");
  unsigned long long bad = 0, before = 0, host = 0;
  size_t bytes = 8 * s->pinned.words;
  must(cudaMemsetAsync(s->wrong, 0, 8, s->stream), "clear");
  for (const auto *all : {&s->pieces, &s->churn})
    for (const Piece &p : *all) {
      compare<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, p.regular, s->wrong);
      bytes += 8 * p.words;
    }
  must(cudaMemcpyAsync(&before, s->damaged, 8, cudaMemcpyDeviceToHost, s->stream), "copy");
  if (s->pinned.words)
    compare<<<kBlocks, kThreads, 0, s->stream>>>(s->pinned.memory, s->pinned.words, s->pinned.seed, s->pinned.regular, s->wrong);
  must(cudaMemcpyAsync(&bad, s->wrong, 8, cudaMemcpyDeviceToHost, s->stream), "copy");
  must(cudaStreamSynchronize(s->stream), "compare");
  for (size_t i = 0; i < s->pinned.words; i++) host += s->pinned.memory[i] != word(i, s->pinned.seed, s->pinned.regular);

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

  found->bytes += bytes;
  found->wrong += bad + before;
  found->onHost += host;
  found->anew += unfit;
  found->ticks += s->ticks;
  found->counter += s->seen;
}

std::string checkAll(const std::vector<State> &all, bool *ok) {
  Found f;
  double gap = 0;
  *ok = true;
  for (const State &s : all) {
    check(&s, &f);
    *ok = *ok && s.seen == s.ticks;
    gap = std::max(gap, s.gap);
  }
  *ok = *ok && f.wrong == 0 && f.onHost == 0 && f.anew == 0;
  char text[512];
  snprintf(text, sizeof text,
           "\"bytes\":%zu,\"wrong\":%llu,\"wrongOnHost\":%llu,\"wrongAnew\":%llu,\"ticks\":%llu,\"counter\":%llu,\"gap\":%.4f", f.bytes, f.wrong, f.onHost,
           f.anew, f.ticks, f.counter, gap);
  return text;
}

// copy copies the first piece of one device to another, which it gives no access to it, and verifies it there.
std::string copy(const State &from, const State &to, bool *ok) {
  const Piece &p = from.pieces.front();
  unsigned long long bad = 0;
  void *there = nullptr;
  must(cudaSetDevice(to.device), "use a device");
  must(cudaMalloc(&there, p.words * 8), "cudaMalloc");
  must(cudaMemcpyPeerAsync(there, to.device, p.memory, from.device, p.words * 8, to.stream), "cudaMemcpyPeerAsync");
  must(cudaMemsetAsync(to.wrong, 0, 8, to.stream), "clear");
  compare<<<kBlocks, kThreads, 0, to.stream>>>(static_cast<uint64_t *>(there), p.words, p.seed, p.regular, to.wrong);
  must(cudaMemcpyAsync(&bad, to.wrong, 8, cudaMemcpyDeviceToHost, to.stream), "copy");
  must(cudaStreamSynchronize(to.stream), "compare the copy");
  must(cudaFree(there), "free");
  *ok = bad == 0;
  return "\"bytes\":" + std::to_string(p.words * 8) + ",\"wrong\":" + std::to_string(bad);
}

void poll(const std::vector<State> &all) {
  Question q;
  if (!asked(&q)) return;
  bool ok = true;
  std::string fields;
  if (q.word == "check") {
    fields = checkAll(all, &ok);
  } else if (q.word == "copy") {
    fields = copy(all.front(), all.back(), &ok);
  } else if (q.word == "long") {
    must(cudaSetDevice(0), "use a device");
    spin<<<1, 1, 0, all.front().stream>>>(uint64_t(q.argument * 1e9));
    must(cudaGetLastError(), "launch the long kernel");
  } else {
    ok = false;
    fields = "\"error\":\"no such question\"";
  }
  answer(q.sequence, ok, fields);
}

void tick(State *s, double *last) {
  must(cudaSetDevice(s->device), "use a device");
  increment<<<1, 1, 0, s->stream>>>(s->counter);
  s->ticks++;
  if (!s->churn.empty()) {
    Piece &p = s->churn[s->ticks % s->churn.size()];
    compare<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, p.regular, s->damaged);
    p.seed = mix(p.seed);
    fill<<<kBlocks, kThreads, 0, s->stream>>>(p.memory, p.words, p.seed, p.regular);
  }
  must(cudaMemcpyAsync(&s->seen, s->counter, 8, cudaMemcpyDeviceToHost, s->stream), "copy the counter");
  must(cudaStreamSynchronize(s->stream), "tick");
  const double now = seconds();
  if (s->ticks > 1) s->gap = std::max(s->gap, now - *last);
  *last = now;
}

void run(double gib, const std::string &mode, bool regular, double random, double churn, int devices) {
  std::vector<State> all(devices);
  for (int i = 0; i < devices; i++) {
    all[i].device = i;
    all[i].regular = regular;
    allocate(&all[i], gib / devices, mode, random / devices, churn / devices);
  }
  ready();
  for (double last = seconds();;) {
    for (State &s : all) tick(&s, &last);
    poll(all);
    usleep(10000);
  }
}

}  // namespace

int main(int argc, char **argv) {
  double gib = 1, random = 0, churn = 0;
  std::string mode = "plain";
  bool regular = false;
  int processes = 1, devices = 1;
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
    else if (flag == "--random")
      random = atof(value.c_str());
    else if (flag == "--churn")
      churn = atof(value.c_str());
    else if (flag == "--processes")
      processes = atoi(value.c_str());
    else if (flag == "--devices")
      devices = atoi(value.c_str());
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
  run(gib, mode, regular, random, churn, devices);
}
