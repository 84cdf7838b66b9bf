"""Asks a driver what becomes of shared memory around its checkpoint. runtime/gpu/DECISIONS.md has the answers so far.

    python3 sharing.py [QUESTION...]

The questions are left, again, export, apart, kcmp, host and managed: the functions below, all of them by default. One GPU is enough.
Each starts processes of its own, which do with CUDA's driver calls what they are told. A line says what was seen; nothing is right
or wrong but the bytes. It exits with 1 if bytes were wrong where the driver had said yes. LIBCUDA names another library.
"""

import ctypes as C
import os
import pickle
import random
import signal
import socket
import subprocess
import sys

CUDA = C.CDLL(os.environ.get("LIBCUDA", "libcuda.so.1"))
LIBC = C.CDLL(None, use_errno=True)
SIZE = 8 << 20
PATIENCE = 30  # seconds for an answer: a process that the driver keeps locked gives none
DEVICE, HOST_NUMA = 1, 3  # CUmemLocationType
POSIX_FD = 1  # CUmemAllocationHandleType
PIDFD_GETFD, KCMP, KCMP_FILE = 438, 312, 0  # x86-64
wrong = 0


class Location(C.Structure):
    _fields_ = [("type", C.c_int), ("id", C.c_int)]


class Properties(C.Structure):  # CUmemAllocationProp
    _fields_ = [("type", C.c_int), ("handles", C.c_int), ("location", Location), ("meta", C.c_void_p), ("flags", C.c_uint64)]


class Access(C.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", C.c_int)]


class LockArguments(C.Structure):  # CUcheckpointLockArgs
    _fields_ = [("milliseconds", C.c_uint), ("reserved", C.c_uint), ("more", C.c_uint64 * 7)]


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
    """What a process can be told to do. Allocations and descriptors have names."""

    def __init__(self):
        call("cuInit", 0)
        device, context = C.c_int(), C.c_void_p()
        call("cuDeviceGet", C.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", C.byref(context), device)
        call("cuCtxSetCurrent", context)
        self.handles, self.addresses, self.descriptors, self.types = {}, {}, {}, {}

    def make(self, name, seed, kind=DEVICE):
        properties, handle = Properties(1, POSIX_FD, Location(kind, 0)), C.c_uint64()
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
        who = [Location(kind, 0) for kind in sorted({DEVICE, self.types[name]})]
        access = (Access * len(who))(*[Access(location, 3) for location in who])
        call("cuMemSetAccess", address, C.c_size_t(SIZE), access, C.c_size_t(len(who)))

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

    def holds(self, name, seed):
        got = C.create_string_buffer(SIZE)
        call("cuMemcpyDtoH_v2", got, word(self.addresses[name]), C.c_size_t(SIZE))
        return got.raw == pattern(seed)

    def write(self, name, seed):
        call("cuMemcpyHtoD_v2", word(self.addresses[name]), pattern(seed), C.c_size_t(SIZE))

    def managed(self, name):
        address = C.c_uint64()
        call("cuMemAllocManaged", C.byref(address), C.c_size_t(SIZE), 1)
        self.addresses[name] = address.value

    def free(self, name):
        call("cuMemFree_v2", word(self.addresses.pop(name)))


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
        number = str(other.fileno())
        self.child = subprocess.Popen([sys.executable, __file__, "--serve", number], pass_fds=[other.fileno()])
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


def pair():
    return Process("owner"), Process("peer")


def cycle(*processes):
    """Takes processes through the driver's checkpoint and back; says what failed, or nothing."""
    for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
        for process in processes:
            arguments = C.byref(LockArguments(10000)) if step == "Lock" else None
            result = getattr(CUDA, "cuCheckpointProcess" + step)(process.child.pid, arguments)
            if result:
                if step in ("Lock", "Checkpoint"):
                    for locked in processes:
                        CUDA.cuCheckpointProcessUnlock(locked.child.pid, None)
                return f"{step.lower()} of {process.name}: {result}"
    return ""


def check(process, name, seed):
    global wrong
    if process.holds(name, seed):
        return "right"
    wrong += 1
    return "WRONG"


def hand(owner, peer, name):
    """Has the peer get a descriptor of the owner's allocation, by pidfd_getfd."""
    peer.fetch(name, owner.child.pid, owner.export(name))


def share(owner, peer, name, seed, kind=DEVICE):
    owner.make(name, seed, kind)
    hand(owner, peer, name)
    peer.adopt(name, kind)
    check(peer, name, seed)


def part(owner, peer, name, but=""):
    """Takes away what the peer has of an allocation, and descriptors, but for one thing."""
    for thing, do in (
        ("mapping", lambda: peer.unmap(name)),
        ("handle", lambda: peer.release(name)),
        ("descriptor", lambda: peer.close(name)),
        ("owner's descriptor", lambda: owner.close(name)),
    ):
        if thing != but:
            do()


def left():
    """What may be left of an import when the peer is checkpointed?"""
    for thing in ("", "mapping", "handle", "descriptor", "owner's descriptor"):
        owner, peer = pair()
        share(owner, peer, "a", 1)
        part(owner, peer, "a", thing)
        print(f"left: {thing or 'nothing'}: {cycle(peer) or 'peer is back'}; {cycle(owner) or 'owner is back, ' + check(owner, 'a', 1)}")
        owner.end(), peer.end()


def again():
    """Taken apart and put back, ten times."""
    owner, peer = pair()
    share(owner, peer, "a", 0)
    for round in range(10):
        part(owner, peer, "a")
        if failed := cycle(owner, peer):
            print(f"again: {round}: {failed}")
            break
        hand(owner, peer, "a")
        peer.adopt("a")
        got = check(peer, "a", round)
        peer.write("a", round + 1)
        print(f"again: {round}: peer {got}, owner sees what peer writes: {check(owner, 'a', round + 1)}")
    owner.end(), peer.end()


def export():
    """What can be exported: restored memory, imported memory?"""
    owner, peer = pair()
    share(owner, peer, "a", 1)
    for process, what in ((peer, "imported"), (owner, "restored")):
        if what == "restored":
            part(owner, peer, "a")
            cycle(owner)
        try:
            process.export("a", "new")
            print(f"export: {what}: yes")
        except Refused as err:
            print(f"export: {what}: {err}")
    owner.end(), peer.end()


def apart():
    """An owner is checkpointed while its peer goes on having the memory: is it one memory afterwards?"""
    owner, peer = pair()
    share(owner, peer, "a", 1)
    if failed := cycle(owner):
        print(f"apart: {failed}")
    else:
        before = check(owner, "a", 1), check(peer, "a", 1)
        peer.write("a", 2)
        print(f"apart: owner {before[0]}, peer {before[1]}, one memory: {owner.holds('a', 2)}")
    owner.end(), peer.end()


def kcmp():
    """Is a descriptor that was passed the same open file?"""
    owner, peer = pair()
    owner.make("a", 1)
    owner.make("b", 2)
    mine, second, other = owner.export("a"), owner.export("a", "second"), owner.export("b")
    passed = {"pidfd_getfd": (peer, peer.fetch("a", owner.child.pid, mine)), "second export": (owner, second), "another": (owner, other)}
    peer.adopt("a")
    for name, (process, number) in passed.items():
        result = LIBC.syscall(KCMP, owner.child.pid, process.child.pid, KCMP_FILE, mine, number)
        print(f"kcmp: {name}: {'equal' if result == 0 else 'different' if result > 0 else os.strerror(C.get_errno())}")
    owner.end(), peer.end()


def host():
    """Does memory on the host come back, never exported, exported, exported and released?"""
    for what in ("never exported", "shared", "released"):
        owner, peer = pair()
        try:
            owner.make("a", 1, HOST_NUMA)
            if what != "never exported":
                hand(owner, peer, "a")
                peer.adopt("a", HOST_NUMA)
                part(owner, peer, "a")
            if what == "released":
                owner.unmap("a")
                owner.release("a")
            failed = cycle(owner)
            print(f"host: {what}: {failed or 'owner is back' + (', ' + check(owner, 'a', 1) if what != 'released' else '')}")
        except Refused as err:
            print(f"host: {what}: {err}")
        owner.end(), peer.end()


def managed():
    """Can a process be checkpointed once its managed memory is freed, and once it was refused?"""
    for what in ("freed before", "refused, then freed"):
        process = Process("process")
        process.managed("a")
        first = cycle(process) if what != "freed before" else "not asked"
        process.free("a")
        print(f"managed: {what}: {first}; then {cycle(process) or 'back'}")
        process.end()


QUESTIONS = {f.__name__: f for f in (left, again, export, apart, kcmp, host, managed)}


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(socket.socket(fileno=int(sys.argv[2])))
        return 0
    call("cuInit", 0)
    for name in sys.argv[1:] or QUESTIONS:
        QUESTIONS[name]()
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
