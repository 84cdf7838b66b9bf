"""Asks a driver what becomes of shared memory around its checkpoint.

    python3 sharing.py [QUESTION...]

The questions are left, again, export, apart, kcmp, host, managed, events and variable: the functions below, all of them by default. One GPU is
enough. Each starts processes of its own, which do with CUDA's driver calls what they are told. A line says what was seen; nothing is
right or wrong but the bytes. It exits with 1 if bytes were wrong where the driver had said yes.

Answers of driver 580.159.04 on H200 and H100, 2026-11-23 and 2026-11-25:
- Mapping and handle of an import must both be gone before the driver is asked, else the importer's checkpoint is 0 and its restore 801, lost. No owner
  may be checkpointed while anybody has its memory: every call succeeds, and it is two memories from then on.
- Mapped host memory by cuMemCreate (NCCL with NCCL_P2P_DISABLE=1): the restore is 999, lost. With the owner's mapping and handle gone too it comes back.
- Memory that the driver restored can be exported again on 580 (reports say not on 615). Imported memory cannot (1); the descriptor it came by serves
  others. The driver's legacy IPC, once opened, cannot be shared again (400, 800).
- kcmp(KCMP_FILE) tells which import is which export, but each export of one allocation is an open file of its own.
- Managed memory: after one refusal (801) every later checkpoint is 999, even when all of it is freed. Made again, it has no promised address.
"""

import ctypes as C
import os
import sys

from driver_calls import DEVICE, HOST_NUMA, KCMP, KCMP_FILE, LIBC, Process, Refused, attempt, check, cycle, main


def pair():
    return Process("owner"), Process("peer")


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


def events():
    """Does a process still wait for what another records, after both were checkpointed?"""
    owner, peer = pair()
    peer.open_event("a", owner.event("a"))

    def wait():
        owner.record_after("a", 1)
        return f"{peer.waited('a'):.2f} s of 1"

    before = attempt(wait)
    print(f"events: waited {before}; {cycle(owner, peer) or 'both are back'}; waited {attempt(wait)}")
    owner.end(), peer.end()


def variable():
    """Can a process with a __managed__ variable be checkpointed, and once its module is unloaded?"""
    for what in ("loaded", "unloaded before"):
        process = Process("process")
        process.load_variable()
        if what != "loaded":
            process.unload_variable()
        print(f"variable: {what}: {cycle(process) or 'back'}")
        process.end()


QUESTIONS = {f.__name__: f for f in (left, again, export, apart, kcmp, host, managed, events, variable)}

if __name__ == "__main__":
    sys.exit(main(QUESTIONS))
