// steady: what calls of CUDA take, on demand: tiny kernels in a row, and allocations with their release.
//
//   steady
//
// It answers as ask.py describes, and does nothing in between. Questions: "check"; "measure SECONDS" spends about that long, and answers with medians in
// seconds: of a launch, in rows of 1000 with a wait at the end, and of a pair of cudaMalloc and cudaFree, by size.
#include "ask.cuh"

#include <algorithm>
#include <vector>

namespace {

__global__ void nothing() {}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
}

// until repeats something for so many seconds, and gives the median of what it takes.
template <typename F>
double until(double time, F &&once) {
  std::vector<double> times;
  for (const double end = seconds() + time; seconds() < end || times.size() < 3;) {
    const double begin = seconds();
    once();
    times.push_back(seconds() - begin);
  }
  return median(times);
}

void launch(cudaStream_t stream, int count) {
  for (int i = 0; i < count; i++) nothing<<<1, 32, 0, stream>>>();
  must(cudaGetLastError(), "launch");
  must(cudaStreamSynchronize(stream), "wait for kernels");
}

void pair(size_t bytes) {
  void *p = nullptr;
  must(cudaMalloc(&p, bytes), "cudaMalloc");
  must(cudaFree(p), "cudaFree");
}

std::string measure(cudaStream_t stream, double time) {
  const int row = 1000;
  const size_t sizes[] = {2, 16, 64};  // MiB
  char text[96];
  snprintf(text, sizeof text, "\"launch\":%.9f", until(time / 2, [&] { launch(stream, row); }) / row);
  std::string fields = text;
  for (size_t mib : sizes) {
    snprintf(text, sizeof text, ",\"allocate %zu MiB\":%.9f", mib, until(time / 6, [&] { pair(mib << 20); }));
    fields += text;
  }
  return fields;
}

}  // namespace

int main() {
  if (const char *d = getenv("WORK")) directory = d;
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
  launch(stream, 1);
  pair(64 << 20);
  ready();
  for (;; usleep(5000)) {
    Question q;
    if (!asked(&q)) continue;
    bool ok = true;
    std::string fields;
    if (q.word == "measure")
      fields = measure(stream, q.argument > 0 ? q.argument : 1);
    else if (q.word != "check")
      ok = false, fields = "\"error\":\"no such question\"";
    answer(q.sequence, ok, fields);
  }
}
