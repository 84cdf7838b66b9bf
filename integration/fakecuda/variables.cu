// Managed variables, and a kernel that changes them. variables.cubin is this by nvcc 13.0: nvcc -cubin -arch=sm_90 variables.cu. The fake driver has the kernel in C (image.c).
#include <cstdint>

extern "C" {
__managed__ uint64_t fake_turns = 7;
__managed__ uint64_t fake_sums[1000] = {1, 2};
__managed__ uint64_t fake_marks[(3 << 20) / 8];
__managed__ uint64_t *fake_where;
__device__ uint64_t fake_step = 3;
__device__ uint64_t *fake_reference = &fake_step;

__global__ void fake_variables() {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) {
    fake_turns += *fake_reference;
    fake_where = &fake_turns;
  }
  if (i < 1000) fake_sums[i] += i;
  if (i < (3 << 20) / 8) fake_marks[i] += i;
}
}
