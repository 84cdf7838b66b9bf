// Measures a keyed sum of device memory that another process owns: what tells which pieces have changed since they were copied.
//
//   keyed_sum [GIB]      nvcc -O3 -arch=sm_90 -o keyed_sum keyed_sum.cu -lcuda
//
// The owner makes GIB allocations of 1 GiB and exports them. Its child imports them and sums, alone, then while the owner computes and
// copies. A sum is NH of UMAC (RFC 4418) with words of 32 bits: four passes over the same data, each with the key shifted by four words,
// 32 bytes for each piece of 64 KiB. For a random key two different pieces have the same sum with a chance of 2^-128. Sums of some
// pieces are compared with the host's, and it exits with 1 where they differ.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr size_t kGiB = size_t(1) << 30, kPiece = 65536, kVectors = kPiece / sizeof(uint4);
constexpr int kThreads = 512, kEach = kVectors / kThreads, kPasses = 4, kKeyWords = kPiece / 4 + 4 * kPasses;

__device__ inline void nh(uint64_t &sum, uint4 data, uint4 key) {
  sum += uint64_t(data.x + key.x) * (data.y + key.y) + uint64_t(data.z + key.z) * (data.w + key.w);
}

// Sums one piece in each block at a time. The key is in shared memory, kKeyWords words.
__global__ void __launch_bounds__(kThreads) sum(const uint4 *data, size_t pieces, const uint4 *key, uint64_t *sums) {
  extern __shared__ uint4 keys[];
  __shared__ uint64_t parts[kThreads / 32][kPasses];
  for (int i = threadIdx.x; i < kKeyWords / 4; i += kThreads) keys[i] = key[i];
  __syncthreads();
  for (size_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const uint4 *from = data + piece * kVectors;
    uint4 words[kEach];
#pragma unroll
    for (int j = 0; j < kEach; j++) words[j] = __ldcs(&from[j * kThreads + threadIdx.x]);
    uint64_t s[kPasses] = {};
#pragma unroll
    for (int j = 0; j < kEach; j++)
#pragma unroll
      for (int pass = 0; pass < kPasses; pass++) nh(s[pass], words[j], keys[j * kThreads + threadIdx.x + pass]);
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) {
      for (int step = 16; step > 0; step /= 2) s[pass] += __shfl_down_sync(~0u, s[pass], step);
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][pass] = s[pass];
    }
    __syncthreads();
    if (threadIdx.x < kPasses) {
      uint64_t total = 0;
      for (auto &part : parts) total += part[threadIdx.x];
      sums[piece * kPasses + threadIdx.x] = total;
    }
    __syncthreads();
  }
}

__global__ void fill(uint64_t *p, size_t words, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < words; i += size_t(gridDim.x) * blockDim.x) {
    uint64_t z = (i + seed) * 0xBF58476D1CE4E5B9u;
    p[i] = z ^ (z >> 29);
  }
}

__global__ void compute(uint64_t *p, size_t) {
  uint64_t z = threadIdx.x;
  for (int i = 0; i < 20000; i++) z = z * 0xBF58476D1CE4E5B9u + i;
  if (z == 1) p[0] = z;
}

__global__ void copy(uint64_t *p, size_t words) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < words / 2; i += size_t(gridDim.x) * blockDim.x)
    p[words / 2 + i] = p[i];
}

#define MUST(call)                                                       \
  do {                                                                   \
    if (int result = int(call)) {                                        \
      fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result); \
      _exit(1);                                                          \
    }                                                                    \
  } while (0)

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

static void send_descriptor(int line, int descriptor) {
  char byte = 0, control[CMSG_SPACE(sizeof descriptor)] = {};
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  MUST(sendmsg(line, &message, 0) != 1);
}

static int receive_descriptor(int line) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = control, message.msg_controllen = sizeof control;
  MUST(recvmsg(line, &message, 0) != 1);
  int descriptor;
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

static void tell(int line, double value) { MUST(write(line, &value, sizeof value) != sizeof value); }

static double hear(int line) {
  double value;
  MUST(read(line, &value, sizeof value) != sizeof value);
  return value;
}

// reserve returns so many GiB of addresses of device 0.
static CUdeviceptr reserve(int gib) {
  MUST(cudaFree(nullptr));  // makes the context
  CUdeviceptr address;
  MUST(cuMemAddressReserve(&address, gib * kGiB, 0, 0, 0));
  return address;
}

static void allow(CUdeviceptr address, int gib) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemSetAccess(address, gib * kGiB, &access, 1));
}

static void own(int line, int gib) {
  CUdeviceptr address = reserve(gib);
  std::vector<CUmemGenericAllocationHandle> handles(gib);
  for (int i = 0; i < gib; i++) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuMemCreate(&handles[i], kGiB, &properties, 0));
    MUST(cuMemMap(address + i * kGiB, kGiB, 0, handles[i], 0));
  }
  allow(address, gib);
  fill<<<1056, 256>>>(reinterpret_cast<uint64_t *>(address), gib * kGiB / 8, 1);
  MUST(cudaDeviceSynchronize());
  for (auto handle : handles) {
    int descriptor;
    MUST(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(line, descriptor);
    close(descriptor);
  }
  uint64_t *scratch;
  MUST(cudaMalloc(&scratch, kGiB));
  hear(line);
  for (auto [kernel, name] : {std::pair(compute, "computes"), std::pair(copy, "copies")}) {
    auto rate = [&, kernel = kernel] {
      int steps = 0;
      const double start = seconds();
      for (; seconds() - start < 1.5; steps++) {
        kernel<<<1056, 256>>>(scratch, kGiB / 8);
        MUST(cudaDeviceSynchronize());
      }
      return steps / (seconds() - start);
    };
    const double alone = rate();
    tell(line, 0);
    const double summed = rate(), pass = hear(line);
    printf("owner %s: %.0f steps a second alone, %.0f while it is summed; a pass takes %.2f ms, %.2f TB/s\n", name, alone, summed, pass * 1e3,
           gib * kGiB / pass / 1e12);
  }
}

static int summing(int line, int gib) {
  CUdeviceptr address = reserve(gib);
  for (int i = 0; i < gib; i++) {
    const int descriptor = receive_descriptor(line);
    CUmemGenericAllocationHandle handle;
    MUST(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    MUST(cuMemMap(address + i * kGiB, kGiB, 0, handle, 0));
  }
  allow(address, gib);
  const auto data = reinterpret_cast<const uint4 *>(address);
  const size_t pieces = gib * kGiB / kPiece, shared = kKeyWords * 4;
  std::vector<uint32_t> words(kKeyWords);
  for (size_t done = 0; done < shared; done += 256) MUST(getrandom(words.data() + done / 4, std::min<size_t>(256, shared - done), 0) < 0);
  uint4 *key;
  uint64_t *sums;
  MUST(cudaMalloc(&key, shared));
  MUST(cudaMalloc(&sums, pieces * kPasses * 8));
  MUST(cudaMemcpy(key, words.data(), shared, cudaMemcpyHostToDevice));
  MUST(cudaFuncSetAttribute(sum, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
  int each, processors;
  MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, sum, kThreads, shared));
  MUST(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  auto pass = [&] {
    const double start = seconds();
    sum<<<each * processors, kThreads, shared>>>(data, pieces, key, sums);
    MUST(cudaDeviceSynchronize());
    return seconds() - start;
  };
  std::vector<double> times;
  for (int i = 0; i < 9; i++) times.push_back(pass());
  std::sort(times.begin(), times.end());
  printf("alone: %d GiB in %.2f ms, %.2f TB/s (median of 9, best %.2f)\n", gib, times[4] * 1e3, gib * kGiB / times[4] / 1e12,
         gib * kGiB / times[0] / 1e12);
  int wrong = 0;
  for (size_t piece : {size_t(0), pieces / 2, pieces - 1}) {
    std::vector<uint32_t> copied(kPiece / 4);
    uint64_t got[kPasses];
    MUST(cudaMemcpy(copied.data(), data + piece * kVectors, kPiece, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(got, sums + piece * kPasses, sizeof got, cudaMemcpyDeviceToHost));
    for (int shift = 0; shift < kPasses; shift++) {
      uint64_t want = 0;
      for (size_t i = 0; i < copied.size(); i += 2)
        want += uint64_t(copied[i] + words[i + 4 * shift]) * uint32_t(copied[i + 1] + words[i + 1 + 4 * shift]);
      wrong += want != got[shift];
    }
  }
  printf("%d of %d sums differ from the host's\n", wrong, 3 * kPasses);
  fflush(stdout);
  tell(line, 0);
  for (int i = 0; i < 2; i++) {
    hear(line);
    double total = 0;
    int passes = 0;
    for (const double start = seconds(); seconds() - start < 1.4; passes++) total += pass();
    tell(line, total / passes);
  }
  return wrong != 0;
}

int main(int count, char **arguments) {
  const int gib = count > 1 ? atoi(arguments[1]) : 16;
  int lines[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, lines));
  const pid_t child = fork();  // before CUDA is used
  if (child == 0) _exit(summing(lines[1], gib));
  own(lines[0], gib);
  int status;
  waitpid(child, &status, 0);
  return status != 0;
}
