// bare: the driver's calls on one process, as they are, with their times: what cryo is measured against.
//
//   bare PID      then on standard input: state, lock MILLISECONDS, checkpoint, restore, unlock
//
// Each is answered by a line: the word, the CUresult, the seconds; state has the state in their place. CUDA is started before the first
// word is read, so that it is in no time. Built on the machine with the GPU: gcc -O2 -I$CUDA/include -o bare bare.c -lcuda
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static CUresult call(const char *word, unsigned argument, int pid) {
  if (!strcmp(word, "lock")) {
    CUcheckpointLockArgs args;
    memset(&args, 0, sizeof args);
    args.timeoutMs = argument;
    return cuCheckpointProcessLock(pid, &args);
  }
  if (!strcmp(word, "checkpoint")) return cuCheckpointProcessCheckpoint(pid, NULL);
  if (!strcmp(word, "restore")) return cuCheckpointProcessRestore(pid, NULL);
  if (!strcmp(word, "unlock")) return cuCheckpointProcessUnlock(pid, NULL);
  return CUDA_ERROR_INVALID_VALUE;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const int pid = atoi(argv[1]);
  const CUresult err = cuInit(0);
  printf("init %d 0\n", (int)err);
  fflush(stdout);
  char line[128], word[32];
  while (err == CUDA_SUCCESS && fgets(line, sizeof line, stdin) != NULL) {
    unsigned argument = 0;
    if (sscanf(line, "%31s %u", word, &argument) < 1) continue;
    if (!strcmp(word, "state")) {
      CUprocessState state = CU_PROCESS_STATE_FAILED;
      const CUresult r = cuCheckpointProcessGetState(pid, &state);
      printf("state %d %d\n", (int)r, (int)state);
    } else {
      const double begin = now();
      const CUresult r = call(word, argument, pid);
      printf("%s %d %.6f\n", word, (int)r, now() - begin);
    }
    fflush(stdout);
  }
  return err == CUDA_SUCCESS ? 0 : 1;
}
