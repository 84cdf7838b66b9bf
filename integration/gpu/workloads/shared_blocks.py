"""Processes that share device memory by descriptors, each with all others, as ranks of NCCL do.

    shared_blocks.py PROCESSES [host]

Each has a block on a GPU, by turns, or on the host, and imports the blocks of all others. In each round it writes to its own block and has a kernel read the others'; each answers for itself.
"""

import array
import os
import socket
import sys

count = int(sys.argv[1])
on_host = len(sys.argv) > 2
boxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]  # to, from
children = []
for rank in range(count):
    pid = os.fork()  # before CUDA is used
    if pid == 0:
        break
    children.append(pid)
else:
    for box in boxes:
        box[0].close(), box[1].close()
    os.waitpid(-1, 0)  # one without the others makes no sense
    os._exit(1)

from ask import Desk
from driver_calls import DEVICE, HOST_NUMA, SIZE, Memory, call, pattern, word
import ctypes as C

call("cuInit", 0)
devices = C.c_int()
call("cuDeviceGetCount", C.byref(devices))
memory = Memory(rank % devices.value)
kind = HOST_NUMA if on_host else DEVICE
memory.make("own", rank, kind)
memory.allocate("sum", 0)
for other in range(count):
    if other != rank:
        fd = memory.export("own")
        boxes[other][0].sendmsg([rank.to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        memory.close("own")
others = []
for _ in range(count - 1):
    data, ancillary, _, _ = boxes[rank][1].recvmsg(4, socket.CMSG_SPACE(4))
    other = int.from_bytes(data, "little")
    memory.descriptors[other] = array.array("i", ancillary[0][2])[0]
    memory.adopt(other, kind)
    memory.close(other)
    others.append(other)
for box in boxes:
    box[0].close(), box[1].close()

right = True
rounds = 0


def tick():
    """Each rank's block has its pattern but for the first word, which counts: others see it grow."""
    global right, rounds
    rounds += 1
    call("cuMemcpyHtoD_v2", word(memory.addresses["own"]), rounds.to_bytes(8, "little"), C.c_size_t(8))


seen = {other: 0 for other in others}


def check():
    good = right and memory.read("own")[8:] == pattern(rank)[8:]
    for other in others:
        block = memory.read(other)
        now = int.from_bytes(block[:8], "little")
        good = good and block[8:] == pattern(other)[8:] and now > seen[other] and (now < 1 << 40)
        seen[other] = now
        memory.launch(b"add", SIZE // 8 // 256, 256, memory.addresses["sum"], memory.addresses[other], SIZE // 8, 1)
        call("cuCtxSynchronize")
        want = (int.from_bytes(block[8:16], "little") + 1) % (1 << 64)
        good = good and int.from_bytes(memory.read("sum")[8:16], "little") == want
    return good, {"rounds": rounds, "rank": rank, "seen": seen}


Desk(rank).serve({"check": check}, tick)
