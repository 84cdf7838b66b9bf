"""Processes that make CUDA's driver calls as they are told, and the driver's checkpoint of them. sharing.py and peers.py ask with it.

LIBCUDA names another library than libcuda.so.1. A call that fails raises Refused, which names the call and the driver's error number.
"""

import ctypes as C
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time

CUDA = C.CDLL(os.environ.get("LIBCUDA", "libcuda.so.1"))
LIBC = C.CDLL(None, use_errno=True)
SIZE = 8 << 20
PATIENCE = 30  # seconds for an answer: a process that the driver keeps locked gives none
DEVICE, HOST_NUMA = 1, 3  # CUmemLocationType
POSIX_FD = 1  # CUmemAllocationHandleType
NOTHING, READ_WRITE = 0, 3  # CUmemAccess_flags
PIDFD_GETFD, KCMP, KCMP_FILE = 438, 312, 0  # x86-64
CHECKED = {"wrong": 0}

# add writes from[i] + more to to[i]; wait returns after so many nanoseconds.
KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from, .param .u64 count, .param .u64 more)
{
  .reg .pred %p1;
  .reg .b32 %r<5>;
  .reg .b64 %d<10>;
  ld.param.u64 %d1, [to];
  ld.param.u64 %d2, [from];
  ld.param.u64 %d3, [count];
  ld.param.u64 %d4, [more];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  cvt.u64.u32 %d5, %r4;
  setp.ge.u64 %p1, %d5, %d3;
  @%p1 bra done;
  shl.b64 %d6, %d5, 3;
  add.u64 %d7, %d2, %d6;
  ld.global.u64 %d8, [%d7];
  add.u64 %d8, %d8, %d4;
  add.u64 %d9, %d1, %d6;
  st.global.u64 [%d9], %d8;
done:
  ret;
}
.visible .entry wait(.param .u64 nanoseconds)
{
  .reg .pred %p1;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [nanoseconds];
  mov.u64 %d2, %globaltimer;
again:
  mov.u64 %d3, %globaltimer;
  sub.u64 %d4, %d3, %d2;
  setp.lt.u64 %p1, %d4, %d1;
  @%p1 bra again;
  ret;
}
\0"""

# A module with a __managed__ variable.
VARIABLE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 8 .u64 variable;
.visible .entry nothing()
{
  ret;
}
\0"""


class Location(C.Structure):
    _fields_ = [("type", C.c_int), ("id", C.c_int)]


class Properties(C.Structure):  # CUmemAllocationProp
    _fields_ = [("type", C.c_int), ("handles", C.c_int), ("location", Location), ("meta", C.c_void_p), ("flags", C.c_uint64)]


class Access(C.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", C.c_int)]


class LockArguments(C.Structure):  # CUcheckpointLockArgs
    _fields_ = [("milliseconds", C.c_uint), ("reserved", C.c_uint), ("more", C.c_uint64 * 7)]


class GPUPair(C.Structure):  # CUcheckpointGpuPair
    _fields_ = [("old", C.c_char * 16), ("new", C.c_char * 16)]


class RestoreArguments(C.Structure):  # CUcheckpointRestoreArgs
    _fields_ = [("pairs", C.POINTER(GPUPair)), ("count", C.c_uint), ("reserved", C.c_char * 52), ("more", C.c_uint64)]


class EventHandle(C.Structure):  # CUipcEventHandle
    _fields_ = [("bytes", C.c_char * 64)]


class Refused(Exception):
    """A call of the driver failed."""


def call(name, *arguments):
    result = getattr(CUDA, name)(*arguments)
    if result:
        raise Refused(f"{name} {result}")


def word(value):
    return C.c_uint64(value)


def pattern(seed):
    return random.Random(seed).randbytes(SIZE)


class Memory:
    """What a process can be told to do. Allocations and descriptors have names; devices have their numbers in the process."""

    def __init__(self, device=0):
        call("cuInit", 0)
        self.contexts, self.modules = {}, {}
        self.handles, self.addresses, self.descriptors, self.types, self.devices = {}, {}, {}, {}, {}
        self.events = {}
        self.use(device)

    def use(self, device):
        """Makes a device the one that what follows is about."""
        if device not in self.contexts:
            number, context = C.c_int(), C.c_void_p()
            call("cuDeviceGet", C.byref(number), device)
            call("cuDevicePrimaryCtxRetain", C.byref(context), number)
            self.contexts[device] = context
        call("cuCtxSetCurrent", self.contexts[device])
        self.device = device

    def uuid(self, device):
        got, number = C.create_string_buffer(16), C.c_int()
        call("cuDeviceGet", C.byref(number), device)
        call("cuDeviceGetUuid_v2", got, number)
        return got.raw.hex()

    def attribute(self, number):
        value, device = C.c_int(), C.c_int(self.device)
        call("cuDeviceGetAttribute", C.byref(value), number, device)
        return value.value

    def make(self, name, seed, kind=DEVICE):
        properties, handle = Properties(1, POSIX_FD, Location(kind, self.device if kind == DEVICE else 0)), C.c_uint64()
        call("cuMemCreate", C.byref(handle), C.c_size_t(SIZE), C.byref(properties), word(0))
        self.handles[name], self.types[name] = handle.value, kind
        self.map(name)
        call("cuMemcpyHtoD_v2", word(self.addresses[name]), pattern(seed), C.c_size_t(SIZE))

    def map(self, name):
        if name not in self.addresses:
            address = C.c_uint64()
            call("cuMemAddressReserve", C.byref(address), C.c_size_t(SIZE), C.c_size_t(0), word(0), word(0))
            self.addresses[name] = address.value
        address = word(self.addresses[name])
        call("cuMemMap", address, C.c_size_t(SIZE), C.c_size_t(0), word(self.handles[name]), word(0))
        who = [Location(DEVICE, self.device)]
        if self.types[name] != DEVICE:
            who.append(Location(self.types[name], 0))
        access = (Access * len(who))(*[Access(location, READ_WRITE) for location in who])
        call("cuMemSetAccess", address, C.c_size_t(SIZE), access, C.c_size_t(len(who)))

    def access(self, name, device, flags):
        """Says what a device may do with an allocation of cuMemCreate."""
        access = Access(Location(DEVICE, device), flags)
        call("cuMemSetAccess", word(self.addresses[name]), C.c_size_t(SIZE), C.byref(access), C.c_size_t(1))

    def allocate(self, name, seed, size=SIZE):
        """Allocates by cuMemAlloc."""
        address = C.c_uint64()
        call("cuMemAlloc_v2", C.byref(address), C.c_size_t(size))
        self.addresses[name] = address.value
        self.write(name, seed)

    def unmap(self, name):
        call("cuMemUnmap", word(self.addresses[name]), C.c_size_t(SIZE))

    def release(self, name):
        call("cuMemRelease", word(self.handles.pop(name)))

    def export(self, name, descriptor=None):
        number = C.c_int(-1)
        call("cuMemExportToShareableHandle", C.byref(number), word(self.handles[name]), POSIX_FD, word(0))
        self.descriptors[descriptor or name] = number.value
        return number.value

    def adopt(self, name, kind=DEVICE):
        """Imports and maps the memory of the descriptor of that name."""
        handle = C.c_uint64()
        call("cuMemImportFromShareableHandle", C.byref(handle), C.c_void_p(self.descriptors[name]), POSIX_FD)
        self.handles[name], self.types[name] = handle.value, kind
        self.map(name)

    def fetch(self, name, pid, number):
        process = os.pidfd_open(pid)
        self.descriptors[name] = LIBC.syscall(PIDFD_GETFD, process, number, 0)
        os.close(process)
        return self.descriptors[name]

    def close(self, name):
        os.close(self.descriptors.pop(name))

    def read(self, name):
        got = C.create_string_buffer(SIZE)
        call("cuMemcpyDtoH_v2", got, word(self.addresses[name]), C.c_size_t(SIZE))
        return got.raw

    def holds(self, name, seed):
        return self.read(name) == pattern(seed)

    def write(self, name, seed):
        call("cuMemcpyHtoD_v2", word(self.addresses[name]), pattern(seed), C.c_size_t(SIZE))

    def launch(self, name, blocks, threads, *arguments):
        if self.device not in self.modules:
            module = C.c_void_p()
            call("cuModuleLoadData", C.byref(module), KERNELS)
            self.modules[self.device] = module
        function = C.c_void_p()
        call("cuModuleGetFunction", C.byref(function), self.modules[self.device], name)
        words = [word(value) for value in arguments]
        pointers = (C.c_void_p * len(words))(*[C.cast(C.byref(value), C.c_void_p) for value in words])
        call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def added(self, to, source):
        """Has a kernel of the device write source + 1 to to, word by word. Is that what is there then?"""
        self.launch(b"add", SIZE // 8 // 256, 256, self.addresses[to], self.addresses[source], SIZE // 8, 1)
        call("cuCtxSynchronize")
        got, want = self.read(to), self.read(source)
        return all(
            (int.from_bytes(want[i : i + 8], "little") + 1) % (1 << 64) == int.from_bytes(got[i : i + 8], "little")
            for i in range(0, SIZE, 4096 - 8)
        )

    def copied(self, to, to_device, source, source_device):
        """Copies from one device to another by cuMemcpyPeer. Is it the same there then?"""
        call(
            "cuMemcpyPeer", word(self.addresses[to]), self.contexts[to_device], word(self.addresses[source]), self.contexts[source_device],
            C.c_size_t(SIZE),
        )
        call("cuCtxSynchronize")
        return self.read(to) == self.read(source)

    def peer(self, device, other):
        """Gives a device access to the memory of another."""
        self.use(device)
        call("cuCtxEnablePeerAccess", self.contexts[other], 0)

    def unpeer(self, device, other):
        self.use(device)
        call("cuCtxDisablePeerAccess", self.contexts[other])

    def event(self, name):
        """Makes an event for other processes, and returns its 64 bytes."""
        event, handle = C.c_void_p(), EventHandle()
        call("cuEventCreate", C.byref(event), 2 | 4)  # without timing, for other processes
        call("cuIpcGetEventHandle", C.byref(handle), event)
        self.events[name] = event
        return bytes(handle)

    def open_event(self, name, handle):
        event = C.c_void_p()
        call("cuIpcOpenEventHandle", C.byref(event), EventHandle.from_buffer_copy(handle))
        self.events[name] = event

    def record_after(self, name, seconds):
        """Records an event behind a kernel of so many seconds. Does not wait for it."""
        self.launch(b"wait", 1, 1, int(seconds * 1e9))
        call("cuEventRecord", self.events[name], None)

    def waited(self, name):
        """How many seconds does waiting for an event take?"""
        start = time.monotonic()
        call("cuEventSynchronize", self.events[name])
        return time.monotonic() - start

    def managed(self, name, size=SIZE):
        address = C.c_uint64()
        call("cuMemAllocManaged", C.byref(address), C.c_size_t(size), 1)
        self.addresses[name] = address.value
        return address.value

    def prefetch(self, name, device, size=SIZE):
        call("cuMemPrefetchAsync", word(self.addresses[name]), C.c_size_t(size), device, None)
        call("cuCtxSynchronize")

    def advise(self, name, advice, device, size=SIZE):
        call("cuMemAdvise", word(self.addresses[name]), C.c_size_t(size), advice, device)

    def located(self, name, size=SIZE):
        """Where was managed memory last prefetched to?"""
        value = C.c_int()
        call("cuMemRangeGetAttribute", C.byref(value), C.c_size_t(4), 4, word(self.addresses[name]), C.c_size_t(size))
        return value.value

    def free(self, name):
        call("cuMemFree_v2", word(self.addresses.pop(name)))

    def load_variable(self):
        module = C.c_void_p()
        call("cuModuleLoadData", C.byref(module), VARIABLE)
        self.modules["variable"] = module

    def unload_variable(self):
        call("cuModuleUnload", self.modules.pop("variable"))


def serve(line):
    memory = Memory()
    while message := line.recv(1 << 16):
        name, arguments = pickle.loads(message)
        try:
            answer = getattr(memory, name)(*arguments)
        except Refused as err:
            answer = err
        line.send(pickle.dumps(answer))


class Process:
    """A process that does what is called on it, as Memory says."""

    def __init__(self, name):
        self.name = name
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE)
        serving = f"import driver_calls, socket; driver_calls.serve(socket.socket(fileno={other.fileno()}))"
        self.child = subprocess.Popen([sys.executable, "-c", serving], cwd=os.path.dirname(__file__) or None, pass_fds=[other.fileno()])
        other.close()

    def __getattr__(self, verb):
        def ask(*arguments):
            self.line.send(pickle.dumps((verb, arguments)))
            answer = pickle.loads(self.line.recv(1 << 16))
            if isinstance(answer, Refused):
                raise answer
            return answer

        return ask

    def end(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.line.close()


def swapped():
    """Arguments of a restore that exchange the first two GPUs."""
    uuids = []
    for i in range(2):
        uuid, device = C.create_string_buffer(16), C.c_int()
        call("cuDeviceGet", C.byref(device), i)
        call("cuDeviceGetUuid_v2", uuid, device)
        uuids.append(uuid.raw)
    pairs = (GPUPair * 2)()
    for i in range(2):
        C.memmove(C.addressof(pairs[i]), uuids[i] + uuids[1 - i], 32)
    return RestoreArguments(pairs, 2)


def cycle(*processes, exchange=False):
    """Takes processes through the driver's checkpoint and back, to the other of two GPUs if asked to; says what failed, or nothing."""
    for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
        for process in processes:
            arguments = None
            if step == "Lock":
                arguments = C.byref(LockArguments(10000))
            elif step == "Restore" and exchange:
                arguments = C.byref(swapped())
            result = getattr(CUDA, "cuCheckpointProcess" + step)(process.child.pid, arguments)
            if result:
                if step in ("Lock", "Checkpoint"):
                    for locked in processes:
                        CUDA.cuCheckpointProcessUnlock(locked.child.pid, None)
                return f"{step.lower()} of {process.name}: {result}"
    return ""


def check(process, name, seed):
    return verdict(process.holds(name, seed))


def verdict(right):
    if right:
        return "right"
    CHECKED["wrong"] += 1
    return "WRONG"


def attempt(do, *arguments):
    """What a call answers, or the driver's error in words."""
    try:
        answer = do(*arguments)
        return "done" if answer is None else str(answer)
    except Refused as err:
        return str(err)
    except (TimeoutError, EOFError, ConnectionError, OSError) as err:
        return f"no answer ({type(err).__name__})"


def main(questions):
    """Asks the questions that the command line names, or all. 1 if bytes were wrong where the driver had said yes."""
    call("cuInit", 0)
    for name in sys.argv[1:] or questions:
        questions[name]()
        sys.stdout.flush()
    return 1 if CHECKED["wrong"] else 0

