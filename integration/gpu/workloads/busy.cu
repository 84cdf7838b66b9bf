// busy: a container's program whose threads launch kernels, copy, allocate and free without a pause.
//
//   busy [--threads 8] [--mib 512]
//
// Each thread works on memory of its own, whose contents follow from the thread and how far it has come: half of it stays, and is compared and
// written anew part by part; the rest is allocations that live for a few rounds, which a kernel, the host or another place on the device fills,
// and which are compared in whole before they are freed. So nothing is lost or damaged without being noticed, also where it comes and goes between two
// questions. The question: "check" has each thread compare all it has at that moment. It answers as ask.py describes.
#include "ask.cuh"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMiB = size_t(1) << 20;
constexpr size_t kParts = 16;      // of the memory that stays
constexpr size_t kAlive = 4;       // allocations that a thread has at a time, beside the newest
constexpr size_t kHost = kMiB;     // bytes of pinned memory

struct Memory {
  uint64_t *at;
  size_t words;
  uint64_t seed;
};

struct Worker {
  int index;
  size_t stays;  // bytes that stay
  size_t most;   // bytes that an allocation has at most
  // What the answering thread reads and writes.
  std::atomic<unsigned long long> rounds{0}, wrong{0}, bytes{0}, wanted{0}, checked{0};
  unsigned long long before = 0;  // rounds at the last question

  cudaStream_t stream = nullptr;
  uint64_t *host = nullptr, *base = nullptr, *scratch = nullptr;
  unsigned long long *found = nullptr;  // wrong words, on the device
  unsigned long long *copied = nullptr; // the same, in pinned memory
  std::vector<Memory> parts;
  std::deque<Memory> alive;

  Worker(int number, size_t share) : index(number), stays(share / 2 / kMiB * kMiB), most(std::max(share / 8, 2 * kMiB)) {}

  uint64_t seed(uint64_t n) const { return mix(n * 64 + uint64_t(index)); }

  void set(const Memory &m) { fill<<<kBlocks, kThreads, 0, stream>>>(m.at, m.words, m.seed, true); }

  void look(const Memory &m) { compare<<<kBlocks, kThreads, 0, stream>>>(m.at, m.words, m.seed, true, found); }

  // settle waits, and takes notice of what was found.
  void settle(const char *what) {
    must(cudaGetLastError(), what);
    must(cudaMemcpyAsync(copied, found, sizeof *found, cudaMemcpyDeviceToHost, stream), "copy what was found");
    must(cudaStreamSynchronize(stream), what);
    wrong += *copied;
    must(cudaMemsetAsync(found, 0, sizeof *found, stream), "clear what was found");
  }

  void begin() {
    must(cudaSetDevice(0), "take the device");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    must(cudaHostAlloc(&host, kHost, cudaHostAllocDefault), "cudaHostAlloc");
    must(cudaHostAlloc(&copied, sizeof *copied, cudaHostAllocDefault), "cudaHostAlloc");
    must(cudaMalloc(&found, sizeof *found), "cudaMalloc");
    must(cudaMalloc(&base, stays), "cudaMalloc");
    must(cudaMalloc(&scratch, most), "cudaMalloc");
    must(cudaMemsetAsync(found, 0, sizeof *found, stream), "clear what was found");
    const size_t words = stays / 8 / kParts;
    for (size_t i = 0; i < kParts; i++) {
      parts.push_back({base + i * words, words, seed(i)});
      set(parts.back());
    }
    settle("fill");
  }

  void step(unsigned long long n) {
    // What stays is compared before it is written anew.
    Memory &part = parts[n % kParts];
    look(part);
    part.seed = seed(1000 + n);
    set(part);

    // Sizes below 2 MiB are among them: the driver serves those.
    const size_t bytes = std::max(size_t(mix(seed(n)) % most), 64 * size_t(1024)) / 8 * 8;
    Memory fresh{nullptr, bytes / 8, seed(2000000 + n)};
    must(cudaMalloc(&fresh.at, bytes), "cudaMalloc");
    switch (n % 3) {
      case 0:  // a kernel fills it
        set(fresh);
        break;
      case 1:  // the host fills it as far as its memory goes
        fresh.words = std::min(fresh.words, kHost / 8);
        for (size_t i = 0; i < fresh.words; i++) host[i] = word(i, fresh.seed, true);
        must(cudaMemcpyAsync(fresh.at, host, fresh.words * 8, cudaMemcpyHostToDevice, stream), "copy to the device");
        break;
      case 2:  // it is copied on the device
        set({scratch, fresh.words, fresh.seed});
        must(cudaMemcpyAsync(fresh.at, scratch, fresh.words * 8, cudaMemcpyDeviceToDevice, stream), "copy on the device");
        break;
    }
    alive.push_back(fresh);

    const Memory &oldest = alive.front();
    const size_t words = std::min(oldest.words, kHost / 8);
    const bool home = n % 4 == 3;
    if (home) {  // and on the host
      must(cudaStreamSynchronize(stream), "fill");
      must(cudaMemcpyAsync(host, oldest.at, words * 8, cudaMemcpyDeviceToHost, stream), "copy from the device");
    }
    look(fresh);
    settle("compare");
    unsigned long long bad = 0;
    for (size_t i = 0; home && i < words; i++) bad += host[i] != word(i, oldest.seed, true);
    wrong += bad;

    while (alive.size() > kAlive) {
      look(alive.front());
      settle("compare what is to be freed");
      must(cudaFree(alive.front().at), "cudaFree");
      alive.pop_front();
    }
  }

  // all compares everything that the thread has.
  void all() {
    unsigned long long sum = 0;
    for (const Memory &m : parts) look(m), sum += m.words * 8;
    for (const Memory &m : alive) look(m), sum += m.words * 8;
    settle("compare all");
    bytes = sum;
  }

  void run() {
    begin();
    for (unsigned long long n = 0;; n++) {
      const unsigned long long want = wanted;
      if (want != checked) {
        all();
        checked = want;
      }
      step(n);
      rounds = n + 1;
    }
  }
};

std::string check(std::vector<Worker *> &workers, bool *ok) {
  static unsigned long long checks = 0;
  checks++;
  for (Worker *w : workers) w->wanted = checks;
  unsigned long long least = ~0ull, most = 0, wrong = 0, bytes = 0;
  bool all = true;  // threads have gone on since the last question
  for (Worker *w : workers) {
    while (w->checked != checks) usleep(500);
    const unsigned long long rounds = w->rounds;
    all = all && rounds > w->before;
    w->before = rounds;
    least = std::min(least, rounds), most = std::max(most, rounds);
    wrong += w->wrong, bytes += w->bytes;
  }
  *ok = wrong == 0 && all;
  char text[256];
  snprintf(text, sizeof text, "\"threads\":%zu,\"bytes\":%llu,\"wrong\":%llu,\"rounds\":[%llu,%llu]", workers.size(), bytes, wrong, least, most);
  return text;
}

}  // namespace

int main(int argc, char **argv) {
  int threads = 8;
  size_t mib = 512;
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
  must(cudaFree(nullptr), "start CUDA");
  std::vector<Worker *> workers;
  for (int i = 0; i < threads; i++) {
    workers.push_back(new Worker(i, mib * kMiB / size_t(threads)));
    std::thread(&Worker::run, workers.back()).detach();
  }
  for (const Worker *w : workers)
    while (w->rounds == 0) usleep(1000);
  ready();
  for (;; usleep(5000)) {
    Question q;
    if (!asked(&q)) continue;
    bool ok = false;
    const std::string fields = q.word == "check" ? check(workers, &ok) : "\"error\":\"no such question\"";
    answer(q.sequence, ok, fields);
  }
}
