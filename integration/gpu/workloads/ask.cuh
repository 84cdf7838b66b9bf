// What the programs of containers have in common: the pattern that they fill memory with, and questions and answers, as ask.py describes them.
#pragma once

#include <cuda_runtime.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

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

inline double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

std::string directory = "/srv";
int number = 0;  // of this process
uint64_t life = 0;

inline void publish(const std::string &name, const std::string &text) {
  const std::string path = directory + "/" + name + "-" + std::to_string(number), fresh = path + ".new";
  FILE *f = fopen(fresh.c_str(), "w");
  if (f == nullptr) {
    perror(fresh.c_str());
    _exit(4);
  }
  fputs(text.c_str(), f);
  fclose(f);
  rename(fresh.c_str(), path.c_str());
}

// must ends the program at once where something has failed: its other threads may be in CUDA's calls.
inline void must(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return;
  const std::string text = std::string(what) + ": " + cudaGetErrorName(err) + ": " + cudaGetErrorString(err);
  fprintf(stderr, "%s\n", text.c_str());
  publish("failed", text);
  _exit(3);
}

inline void answer(unsigned long long sequence, bool ok, const std::string &fields) {
  char head[160];
  snprintf(head, sizeof head, "{\"seq\":%llu,\"ok\":%s,\"life\":\"%016llx\",\"pid\":%d", sequence, ok ? "true" : "false", (unsigned long long)life,
           int(getpid()));
  publish("answer", head + (fields.empty() ? "" : "," + fields) + "}\n");
}

// ready begins a life, and says so.
inline void ready() {
  const int f = open("/dev/urandom", O_RDONLY);
  if (f < 0 || read(f, &life, sizeof life) != ssize_t(sizeof life)) _exit(4);
  close(f);
  answer(0, true, "");
}

struct Question {
  unsigned long long sequence = 0;
  std::string word;
  double argument = 0;
};

// asked gives a question, if there is one.
inline bool asked(Question *q) {
  const std::string path = directory + "/ask-" + std::to_string(number);
  FILE *f = fopen(path.c_str(), "r");
  if (f == nullptr) return false;
  char word[32] = "";
  q->argument = 0;
  const int n = fscanf(f, "%llu %31s %lf", &q->sequence, word, &q->argument);
  fclose(f);
  unlink(path.c_str());
  q->word = word;
  return n >= 2;
}

}  // namespace
