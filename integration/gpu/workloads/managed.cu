// managed: a container's program that works on managed memory (cudaMallocManaged), by turns on the device and on the host, and compares everything with
// what the host alone computes in memory of its own.
//
//   managed [--gib N] [--still] [--empty-pool]
//
// It answers as ask.py describes. Between questions it ticks: a stencil, a traversal of a graph, variables, advice and prefetches, a pool, a write barrier by a handler of its
// own for SIGSEGV, and N GiB in slices, one of them at each tick. With --still it does nothing in between. With --empty-pool it does
// nothing either, and has a pool of managed memory of which nothing is allocated.
// Questions: "check"; "measure SECONDS" answers with medians in seconds: "kernel", of one that reads and writes 1 GiB of the device; "touch", of the host
// that reads a word of each page of 256 MiB after a kernel; "back", of a kernel on 256 MiB that the host has written; "edges", of 20 steps of a stencil on
// the device and one of the host on 64 rows; "halves", of a step on the device and one on the host, on all rows.
#include "ask.cuh"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace {

template <typename T>
T *managed(size_t count) {
  void *p = nullptr;
  must(cudaMallocManaged(&p, count * sizeof(T)), "cudaMallocManaged");
  return static_cast<T *>(p);
}

void done(const char *what) {
  must(cudaGetLastError(), what);
  must(cudaDeviceSynchronize(), what);
}

// Task is something that goes on at each tick. right is false once a result was not the host's.
struct Task {
  const char *name;
  bool right = true;
  explicit Task(const char *n) : name(n) {}
  virtual ~Task() = default;
  virtual void tick(unsigned long long ticks) = 0;
  virtual void check() {}
};

// The stencil counts in whole numbers, so that host and device have the same result.
__host__ __device__ inline uint32_t cell(const uint32_t *from, int width, int x, int y, int rows) {
  const int up = y ? y - 1 : rows - 1, down = y + 1 < rows ? y + 1 : 0, left = x ? x - 1 : width - 1, right = x + 1 < width ? x + 1 : 0;
  const size_t row = size_t(y) * width;
  return (from[size_t(up) * width + x] + from[size_t(down) * width + x] + from[row + left] + from[row + right]) * 0x9E3779B1u + from[row + x];
}

__global__ void stencil(const uint32_t *from, uint32_t *to, int width, int rows) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < size_t(width) * rows; i += size_t(gridDim.x) * blockDim.x)
    to[i] = cell(from, width, int(i % width), int(i / width), rows);
}

void stencilHost(const uint32_t *from, uint32_t *to, int width, int rows, int first, int last) {
  for (int y = first; y < last; y++)
    for (int x = 0; x < width; x++) to[size_t(y) * width + x] = cell(from, width, x, y, rows);
}

struct Stencil : Task {
  static constexpr int kWidth = 1024, kRows = 768;  // 3 MiB
  uint32_t *from = managed<uint32_t>(kWidth * kRows), *to = managed<uint32_t>(kWidth * kRows);
  std::vector<uint32_t> mine = std::vector<uint32_t>(kWidth * kRows), next = mine;
  Stencil() : Task("stencil") {
    for (size_t i = 0; i < mine.size(); i++) from[i] = mine[i] = uint32_t(mix(i));
  }
  void tick(unsigned long long ticks) override {
    const int row = int(ticks % kRows);
    stencil<<<kBlocks, kThreads>>>(from, to, kWidth, kRows);
    stencilHost(mine.data(), next.data(), kWidth, kRows, 0, kRows);
    done("stencil");
    std::swap(from, to);
    std::swap(mine, next);
    for (int x = 0; x < kWidth; x++) {  // the host reads a row, and writes another
      right = right && from[size_t(row) * kWidth + x] == mine[size_t(row) * kWidth + x];
      from[size_t(kRows - 1 - row) * kWidth + x] += uint32_t(x);
      mine[size_t(kRows - 1 - row) * kWidth + x] += uint32_t(x);
    }
    if (ticks % 5 == 0) {  // a step of the host's, of all rows
      stencilHost(from, to, kWidth, kRows, 0, kRows);
      stencilHost(mine.data(), next.data(), kWidth, kRows, 0, kRows);
      std::swap(from, to);
      std::swap(mine, next);
    }
  }
  void check() override { right = right && memcmp(from, mine.data(), mine.size() * sizeof(uint32_t)) == 0; }
};

// expand visits the neighbors of all vertices of a level, and puts those that are new into the next one.
__global__ void expand(const uint32_t *starts, const uint32_t *ends, const uint32_t *level, uint32_t count, uint32_t *next, uint32_t *found, int *depth, int now) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    for (uint32_t e = starts[level[i]]; e < starts[level[i] + 1]; e++)
      if (atomicCAS(&depth[ends[e]], -1, now) == -1) next[atomicAdd(found, 1u)] = ends[e];
}

struct Graph : Task {
  static constexpr uint32_t kVertices = 100000, kDegree = 4;
  uint32_t *starts = managed<uint32_t>(kVertices + 1), *ends = managed<uint32_t>(kVertices * kDegree), *level = managed<uint32_t>(kVertices),
           *next = managed<uint32_t>(kVertices), *found = managed<uint32_t>(1);
  int *depth = managed<int>(kVertices);
  Graph() : Task("graph") {
    for (uint32_t v = 0; v <= kVertices; v++) starts[v] = v * kDegree;
    for (uint32_t e = 0; e < kVertices * kDegree; e++) ends[e] = uint32_t(mix(e) % kVertices);
  }
  void tick(unsigned long long ticks) override {
    const uint32_t source = uint32_t(mix(ticks) % kVertices);
    std::fill(depth, depth + kVertices, -1);
    depth[source] = 0;
    level[0] = source;
    uint32_t count = 1;
    for (int now = 1; count; now++) {
      *found = 0;
      expand<<<256, 256>>>(starts, ends, level, count, next, found, depth, now);
      done("expand a level");
      count = *found;
      std::sort(next, next + count);  // by the host
      std::swap(level, next);
    }
    std::vector<int> expected(kVertices, -1);
    std::vector<uint32_t> all{source};
    expected[source] = 0;
    for (size_t i = 0; i < all.size(); i++)
      for (uint32_t e = all[i] * kDegree; e < (all[i] + 1) * kDegree; e++)
        if (expected[uint32_t(mix(e) % kVertices)] == -1) {
          expected[uint32_t(mix(e) % kVertices)] = expected[all[i]] + 1;
          all.push_back(uint32_t(mix(e) % kVertices));
        }
    right = right && std::equal(expected.begin(), expected.end(), depth);
  }
};

// Managed variables (__managed__), with and without a value at first, beside one of the device.
constexpr size_t kSums = 4096, kMarks = 3 << 20;
__managed__ uint64_t turns = 1, sums[kSums] = {3, 5, 7}, *self;
__managed__ unsigned char marks[kMarks];
__device__ uint64_t step = 2;

__global__ void change(uint64_t by) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i == 0) {
    turns += step;
    self = &turns;
  }
  if (i < kSums) sums[i] = sums[i] * 3 + by;
  if (i < kMarks) marks[i] += static_cast<unsigned char>(i + by);
}

struct Variables : Task {
  uint64_t mine = 1;
  std::vector<uint64_t> sum = std::vector<uint64_t>(kSums);
  std::vector<unsigned char> mark = std::vector<unsigned char>(kMarks);
  Variables() : Task("managed variables") {
    sum[0] = 3, sum[1] = 5, sum[2] = 7;
    right = turns == 1 && self == nullptr && memcmp(sums, sum.data(), sizeof(sums)) == 0 && memcmp(marks, mark.data(), kMarks) == 0;
  }
  void tick(unsigned long long ticks) override {
    change<<<(kMarks + kThreads - 1) / kThreads, kThreads>>>(ticks);
    done("managed variables");
    mine += 2;
    for (size_t i = 0; i < kSums; i++) sum[i] = sum[i] * 3 + ticks;
    for (size_t i = 0; i < kMarks; i++) mark[i] += static_cast<unsigned char>(i + ticks);
    right = right && turns == mine && self == &turns && *self == mine && sums[ticks % kSums] == sum[ticks % kSums];
    sums[ticks % kSums] += 11, sum[ticks % kSums] += 11;
    marks[ticks * 4099 % kMarks] ^= 5, mark[ticks * 4099 % kMarks] ^= 5;
    turns++, mine++;
  }
  void check() override { right = right && memcmp(sums, sum.data(), sizeof(sums)) == 0 && memcmp(marks, mark.data(), kMarks) == 0; }
};

constexpr int kHost = -1;

#if CUDART_VERSION >= 13000
cudaMemLocation location(int where) {
  cudaMemLocation l{};
  l.type = where == kHost ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  l.id = where == kHost ? 0 : where;
  return l;
}
cudaError_t prefetch(const void *p, size_t bytes, int where) { return cudaMemPrefetchAsync(p, bytes, location(where), 0, nullptr); }
#else
int location(int where) { return where == kHost ? cudaCpuDeviceId : where; }
cudaError_t prefetch(const void *p, size_t bytes, int where) { return cudaMemPrefetchAsync(p, bytes, location(where), nullptr); }
#endif

__global__ void add(uint64_t *p, size_t n, uint64_t value) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) p[i] += value;
}

// Advised is memory for which the program gives advice, which it asks for again at each check.
struct Advised : Task {
  static constexpr size_t kWords = size_t(8) << 17;  // 8 MiB
  uint64_t *read = managed<uint64_t>(kWords), *host = managed<uint64_t>(kWords), *sum = managed<uint64_t>(1);
  uint64_t steps = 0;
  Advised() : Task("advised") {
    for (size_t i = 0; i < kWords; i++) read[i] = host[i] = word(i, 9, false);
    *sum = 0;
    must(cudaMemAdvise(read, kWords * 8, cudaMemAdviseSetReadMostly, location(0)), "advise that it is read mostly");
    must(cudaMemAdvise(host, kWords * 8, cudaMemAdviseSetPreferredLocation, location(kHost)), "advise to prefer the host");
    must(cudaMemAdvise(host, kWords * 8, cudaMemAdviseSetAccessedBy, location(0)), "advise that the device accesses it");
  }
  void tick(unsigned long long ticks) override {
    must(prefetch(read, kWords * 8, ticks % 2 ? 0 : kHost), "prefetch");
    add<<<kBlocks, kThreads>>>(host, kWords, 1);
    steps++;
    done("add");
    const size_t i = mix(ticks) % kWords;
    right = right && read[i] == word(i, 9, false) && host[i] == word(i, 9, false) + steps;
  }
  int asked(const uint64_t *p, cudaMemRangeAttribute attribute) {
    int value = -7;
    must(cudaMemRangeGetAttribute(&value, sizeof value, attribute, p, kWords * 8), "ask for advice");
    return value;
  }
  void check() override {
    for (size_t i = 0; i < kWords; i++) right = right && read[i] == word(i, 9, false) && host[i] == word(i, 9, false) + steps;
    right = right && asked(read, cudaMemRangeAttributeReadMostly) == 1 && asked(host, cudaMemRangeAttributePreferredLocation) == cudaCpuDeviceId &&
            asked(host, cudaMemRangeAttributeAccessedBy) == 0;
  }
};

// Pooled is memory of a pool of managed memory, in allocations that come and go; one stays.
#if CUDART_VERSION >= 13000
struct Pooled : Task {
  struct Block {
    uint64_t *memory;
    size_t words;
    uint64_t added;
  };
  cudaMemPool_t pool{};
  cudaStream_t stream{};
  std::vector<Block> blocks;
  Pooled() : Task("pool of managed memory") {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypeManaged;
    properties.location = location(0);
    must(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
    must(cudaStreamCreate(&stream), "cudaStreamCreate");
    for (size_t kib : {4096, 1, 300}) allocate(kib * 128);
  }
  void allocate(size_t words) {
    Block b{nullptr, words, 0};
    must(cudaMallocFromPoolAsync(&b.memory, words * 8, pool, stream), "cudaMallocFromPoolAsync");
    must(cudaStreamSynchronize(stream), "allocate of a pool");
    for (size_t i = 0; i < words; i++) b.memory[i] = word(i, words, false);
    blocks.push_back(b);
  }
  bool holds(const Block &b, size_t i) { return b.memory[i] == word(i, b.words, false) + b.added; }
  void tick(unsigned long long ticks) override {
    for (Block &b : blocks) {
      add<<<kBlocks, kThreads, 0, stream>>>(b.memory, b.words, 5);
      b.added += 5;
    }
    must(cudaStreamSynchronize(stream), "add to a pool");
    for (const Block &b : blocks) right = right && holds(b, mix(ticks) % b.words);
    add<<<kBlocks, kThreads, 0, stream>>>(blocks[1].memory, blocks[1].words, 7);
    must(cudaFreeAsync(blocks[1].memory, stream), "cudaFreeAsync");
    blocks.erase(blocks.begin() + 1);
    allocate(128 + mix(ticks) % 500000);
  }
  void check() override {
    for (const Block &b : blocks)
      for (size_t i = 0; i < b.words; i++) right = right && holds(b, i);
  }
};
#endif

// Barrier is a write barrier, as a garbage collector has one: pages of the program's own that may not be written, whose faults it counts.
char *pages = nullptr;
volatile sig_atomic_t faults = 0, strange = 0;
constexpr size_t kPages = 64, kPage = 4096;

void onFault(int, siginfo_t *info, void *) {
  char *at = static_cast<char *>(info->si_addr);
  if (at < pages || at >= pages + kPages * kPage) {
    strange = strange + 1;
    _exit(9);
  }
  faults = faults + 1;
  mprotect(pages + size_t(at - pages) / kPage * kPage, kPage, PROT_READ | PROT_WRITE);
}

struct Barrier : Task {
  uint64_t *memory = managed<uint64_t>(size_t(4) << 17);
  unsigned long long expected = 0, written = 0;
  Barrier() : Task("barrier") {
    pages = static_cast<char *>(mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action {};
    action.sa_sigaction = onFault;
    action.sa_flags = SA_SIGINFO;
    right = pages != MAP_FAILED && sigaction(SIGSEGV, &action, nullptr) == 0;
    memset(memory, 0, size_t(4) << 20);
  }
  void tick(unsigned long long ticks) override {
    mprotect(pages, kPages * kPage, PROT_READ);
    add<<<kBlocks, kThreads>>>(memory, size_t(4) << 17, 1);
    must(cudaGetLastError(), "add");
    written++;
    for (size_t i = 0; i < kPages; i += 1 + ticks % 3) {
      expected++;
      pages[i * kPage] = char(memory[i * 1000]);  // a fault of the library's, and one of the program's
    }
    done("add");
  }
  void check() override {
    right = right && faults == sig_atomic_t(expected) && !strange;
    for (size_t i = 0; i < size_t(4) << 17; i++) right = right && memory[i] == written;
  }
};

__global__ void compareAdded(const uint64_t *p, size_t n, uint64_t seed, uint64_t added, unsigned long long *wrong) {
  unsigned long long own = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) own += p[i] != word(i, seed, true) + added;
  if (own) atomicAdd(wrong, own);
}

// Large is much memory in slices, of which the device adds to one at each tick, and the host to some words.
struct Large : Task {
  static constexpr size_t kWords = size_t(128) << 17;  // of a slice: 128 MiB
  struct Slice {
    uint64_t *memory, added;
  };
  std::vector<Slice> slices;
  unsigned long long *wrong = managed<unsigned long long>(1);
  explicit Large(double gib) : Task("large") {
    for (size_t at = 0; at < size_t(gib * 1024); at += 128) {
      slices.push_back({managed<uint64_t>(kWords), 0});
      fill<<<kBlocks, kThreads>>>(slices.back().memory, kWords, slices.size() - 1, true);
    }
    done("fill");
  }
  void tick(unsigned long long ticks) override {
    if (slices.empty()) return;
    Slice &s = slices[ticks % slices.size()];
    const uint64_t at = mix(ticks) % kWords;
    add<<<kBlocks, kThreads>>>(s.memory, kWords, 3);
    s.added += 3;
    done("add to a slice");
    right = right && s.memory[at] == word(at, ticks % slices.size(), true) + s.added;
  }
  void check() override {
    *wrong = 0;
    for (size_t i = 0; i < slices.size(); i++) compareAdded<<<kBlocks, kThreads>>>(slices[i].memory, kWords, i, slices[i].added, wrong);
    done("compare slices");
    right = right && *wrong == 0;
  }
};

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
}

// Bench is what is measured, in turn, for as long as is asked.
struct Bench {
  static constexpr size_t kAll = kGiB / 8, kPart = size_t(256) << 17;  // words
  static constexpr int kWidth = 4096, kRows = 4096;                    // 64 MiB
  uint64_t *memory = managed<uint64_t>(kAll);
  uint32_t *from = managed<uint32_t>(size_t(kWidth) * kRows), *to = managed<uint32_t>(size_t(kWidth) * kRows);
  volatile uint64_t sum = 0;
  std::vector<double> kernel, touch, back, edges, halves;
  Bench() {
    memset(memory, 0, kAll * 8);
    for (size_t i = 0; i < size_t(kWidth) * kRows; i++) from[i] = uint32_t(i);
  }
  template <typename F>
  static void time(std::vector<double> *all, F &&once) {
    const double begin = seconds();
    once();
    all->push_back(seconds() - begin);
  }
  void turn() {
    add<<<kBlocks, kThreads>>>(memory, kAll, 1);
    done("add");
    for (int i = 0; i < 3; i++)
      time(&kernel, [&] {
        add<<<kBlocks, kThreads>>>(memory, kAll, 1);
        done("add");
      });
    time(&touch, [&] {
      for (size_t i = 0; i < kPart; i += 512) sum = sum + memory[i];
    });
    for (size_t i = 0; i < kPart; i++) memory[i] = i;
    time(&back, [&] {
      add<<<kBlocks, kThreads>>>(memory, kPart, 1);
      done("add");
    });
    time(&edges, [&] {
      for (int i = 0; i < 20; i++, std::swap(from, to)) stencil<<<kBlocks, kThreads>>>(from, to, kWidth, kRows);
      done("stencil");
      stencilHost(from, to, kWidth, kRows, 0, 64);
    });
    time(&halves, [&] {
      stencil<<<kBlocks, kThreads>>>(from, to, kWidth, kRows);
      done("stencil");
      stencilHost(to, from, kWidth, kRows, 0, kRows);
    });
  }
  std::string run(double time) {
    for (const double end = seconds() + time; seconds() < end || kernel.size() < 9;) turn();
    char text[400];
    snprintf(text, sizeof text, "\"kernel\":%.9f,\"touch\":%.9f,\"back\":%.9f,\"edges\":%.9f,\"halves\":%.9f", median(kernel), median(touch), median(back),
             median(edges), median(halves));
    return text;
  }
};

std::string checkAll(std::vector<std::unique_ptr<Task>> *all, unsigned long long ticks, bool *ok) {
  std::string verdicts;
  for (auto &t : *all) {
    t->check();
    *ok = *ok && t->right;
    verdicts += std::string(verdicts.empty() ? "" : ",") + "\"" + t->name + "\":" + (t->right ? "true" : "false");
  }
  return "\"verdicts\":{" + verdicts + "},\"ticks\":" + std::to_string(ticks);
}

}  // namespace

int main(int argc, char **argv) {
  double gib = 1;
  bool still = false, empty = false;
  if (const char *d = getenv("WORK")) directory = d;
  for (int i = 1; i < argc; i++) {
    const std::string flag = argv[i];
    if (flag == "--still")
      still = true;
    else if (flag == "--empty-pool")
      still = empty = true;
    else if (flag == "--gib" && i + 1 < argc)
      gib = atof(argv[++i]);
    else
      return 2;
  }
  std::vector<std::unique_ptr<Task>> all;
  std::unique_ptr<Bench> bench;
  if (!still) {
    all.emplace_back(new Barrier);
    all.emplace_back(new Stencil);
    all.emplace_back(new Graph);
    all.emplace_back(new Variables);
    all.emplace_back(new Advised);
#if CUDART_VERSION >= 13000
    all.emplace_back(new Pooled);
#endif
    all.emplace_back(new Large(gib));
  }
#if CUDART_VERSION >= 13000
  if (empty) {
    cudaMemPool_t pool;
    cudaMemLocation device = location(0);
    must(cudaMemGetDefaultMemPool(&pool, &device, cudaMemAllocationTypeManaged), "cudaMemGetDefaultMemPool");
  }
#endif
  ready();
  for (unsigned long long ticks = 0;;) {
    Question q;
    bool ok = true;
    if (asked(&q)) {
      std::string fields = "\"error\":\"no such question\"";
      if (q.word == "check") {
        fields = checkAll(&all, ticks, &ok);
      } else if (q.word == "measure") {
        if (!bench) bench.reset(new Bench);
        fields = bench->run(q.argument);
      } else {
        ok = false;
      }
      answer(q.sequence, ok, fields);
    }
    for (auto &t : all) t->tick(ticks);
    if (!still) ticks++;
    usleep(10000);
  }
}
