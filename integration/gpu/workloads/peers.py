"""Asks a driver what becomes of what two GPUs share around its checkpoint.

    python3 peers.py [QUESTION...]

The questions are peer, access, across, exchange, places and arena: the functions below, all of them by default. All but the last need
two GPUs. Each starts processes of its own, as sharing.py does. It exits with 1 if bytes were wrong where the driver had said yes.

Answers of driver 580.159.04 with two H100 and NVLink, 2026-11-25: peer access left in place came back with 32 and 128 MiB, and was lost (restore 1)
with 512 and 1,024. Taken away in both directions first, it comes back, but giving it again is 400 with 1,024 MiB, unless that memory is made after
access was given. cuMemSetAccess on cuMemCreate memory needs none of this.
"""

import sys

from driver_calls import NOTHING, READ_WRITE, Process, attempt, check, cycle, main

BOTH = ((0, 1), (1, 0))


MiB = 1 << 20


def two(more=0):
    """A process with 8 MiB of cuMemAlloc twice on each of two GPUs, and so many MiB more on each."""
    process = Process("process")
    for device in range(2):
        process.use(device)
        process.allocate(f"on {device}", device)
        process.allocate(f"spare {device}", 9)
        if more:
            process.allocate(f"more {device}", 9, more * MiB)
    return process


def reach(process, given=BOTH):
    """Do kernels of each GPU that has access read the other's memory, and does cuMemcpyPeer copy it?"""
    kernels, copies = [], []
    for device, other in given:
        process.use(device)
        kernels.append(attempt(process.added, f"spare {device}", f"on {other}"))
    for device, other in BOTH:
        process.use(device)
        copies.append(attempt(process.copied, f"spare {device}", device, f"on {other}", other))
    return f"kernels {', '.join(kernels)}, copies {', '.join(copies)}"


def contents(process):
    return ", ".join(attempt(check, process, f"on {device}", device) for device in range(2))


def peer():
    """Does a process with peer access come back: kept, taken away in one direction, in both, and again and again?"""
    for what, given, taken, more in (
        ("kept", BOTH, (), 0),
        ("kept", BOTH, (), 32),
        ("kept", BOTH, (), 128),
        ("kept", BOTH, (), 512),
        ("kept", BOTH, (), 1024),
        ("one direction, kept", BOTH[:1], (), 0),
        ("one direction, kept", BOTH[:1], (), 1024),
        ("one of two taken away", BOTH, BOTH[:1], 0),
        ("both taken away", BOTH, BOTH, 0),
        ("both taken away", BOTH, BOTH, 32),
        ("both taken away", BOTH, BOTH, 128),
        ("both taken away", BOTH, BOTH, 1024),
        ("both taken away, and the memory freed", BOTH, BOTH, 1024),
    ):
        process = two(more)
        for pair in given:
            process.peer(*pair)
        title = f"peer: {what}, {more} MiB more"
        print(f"{title}: before: {reach(process, given)}")
        for round in range(3 if taken else 1):
            away = [attempt(process.unpeer, *pair) for pair in taken]
            if "freed" in what:
                for device in range(2):
                    process.use(device)
                    process.free(f"more {device}")
            if failed := cycle(process):
                print(f"{title}: {failed}")
                break
            back = [attempt(process.peer, *pair) for pair in taken]
            if "freed" in what:
                for device in range(2):
                    process.use(device)
                    process.allocate(f"more {device}", 9, more * MiB)
            print(f"{title}: taken {away}; back, {contents(process)}; given {back}{': ' + reach(process, given) if set(back) <= {'done'} else ''}")
            if not set(back) <= {"done"}:
                break
        process.end()


def access():
    """The same for memory of cuMemCreate that another GPU may use as well."""
    for what, more in (("kept", 0), ("kept", 128), ("taken away", 0), ("taken away", 128)):
        process = Process("process")
        process.use(1)
        process.allocate("spare", 9)
        process.use(0)
        names = ["a"] + [f"more {i}" for i in range(more)]
        for name in names:
            process.make(name, 1)
            process.access(name, 1, READ_WRITE)
        process.use(1)
        before = attempt(process.added, "spare", names[-1])
        title = f"access: {what}, {more} of 8 MiB more"
        for round in range(3 if what == "taken away" else 1):
            if what == "taken away":
                for name in names:
                    process.access(name, 1, NOTHING)
            if failed := cycle(process):
                print(f"{title}: kernel {before}; {failed}")
                break
            process.use(0)
            bytes_are = attempt(check, process, names[-1], 1)
            given = {attempt(process.access, name, 1, READ_WRITE) for name in names} if what == "taken away" else "not"
            process.use(1)
            print(f"{title}: kernel {before}; back, {bytes_are}; given {given}: kernel {attempt(process.added, 'spare', names[-1])}")
        process.end()


def shared():
    """Memory of a process on GPU 0 that a process on GPU 1 has imported."""
    owner, importer = Process("owner"), Process("peer")
    importer.use(1)
    owner.make("a", 0)
    importer.fetch("a", owner.child.pid, owner.export("a"))
    importer.adopt("a")
    return owner, importer


def taken_apart(owner, importer):
    importer.unmap("a")
    importer.release("a")
    importer.close("a")
    owner.close("a")


def put_back(owner, importer):
    importer.fetch("a", owner.child.pid, owner.export("a"))
    importer.adopt("a")


def across():
    """Memory that two processes share over two GPUs: kept, and taken apart and put back."""
    owner, importer = shared()
    print(f"across: before: {check(importer, 'a', 0)}; kept: {cycle(importer) or 'peer is back'}; {cycle(owner) or 'owner is back'}")
    owner.end(), importer.end()
    owner, importer = shared()
    for round in range(5):
        taken_apart(owner, importer)
        if failed := cycle(owner, importer):
            print(f"across: {round}: {failed}")
            break
        put_back(owner, importer)
        got = check(importer, "a", round)
        importer.write("a", round + 1)
        print(f"across: {round}: peer {got}, owner sees what peer writes: {check(owner, 'a', round + 1)}")
    owner.end(), importer.end()


def exchange():
    """The GPUs change places: of one process with and without peer access, and of two processes that share."""
    for what in ("no peer access", "peer access"):
        process = two()
        uuids = [process.uuid(device)[:8] for device in range(2)]
        if what == "peer access":
            for pair in BOTH:
                process.peer(*pair)
            for pair in BOTH:
                process.unpeer(*pair)
        failed = cycle(process, exchange=True)
        after = [attempt(process.uuid, device)[:8] for device in range(2)]
        print(f"exchange: {what}: {failed or 'back, ' + contents(process)}; devices 0 and 1 were {uuids}, are {after}")
        if not failed and what == "peer access":
            print(f"exchange: {what}: given {[attempt(process.peer, *pair) for pair in BOTH]}: {reach(process)}")
        process.end()
    owner, importer = shared()
    for round in range(2):
        taken_apart(owner, importer)
        if failed := cycle(owner, importer, exchange=True):
            print(f"exchange: two processes: {failed}")
            break
        put_back(owner, importer)
        got = check(importer, "a", round)
        importer.write("a", round + 1)
        print(f"exchange: two processes: {round}: peer {got}, owner sees what peer writes: {check(owner, 'a', round + 1)}")
    owner.end(), importer.end()


SIZES = (1 << 20, 64 << 20, 300 << 20, 5 << 20, 4096, 2 << 20, 700 << 20)


def places():
    """Managed memory that two GPUs use: is it refused, and where is it after it was freed, checkpointed and made again?"""
    process = Process("process")
    process.use(1)
    process.use(0)
    process.managed("a", SIZES[1])
    process.prefetch("a", 1, SIZES[1])
    process.advise("a", 5, 1, SIZES[1])  # accessed by
    print(f"places: on {process.located('a', SIZES[1])}: {cycle(process) or 'back'}")
    process.end()
    for other in (False, True):
        for try_ in range(3):
            process = Process("process")
            if other:
                process.use(1)
                process.use(0)
            old = []
            for i, size in enumerate(SIZES):
                old.append(process.managed(f"m{i}", size))
                process.prefetch(f"m{i}", i % (2 if other else 1), size)
                process.allocate(f"d{i}", i)
            for i in range(len(SIZES)):
                process.free(f"m{i}")
            failed = cycle(process)
            if failed:
                print(f"places: freed before: {failed}")
                process.end()
                continue
            new = [process.managed(f"m{i}", size) for i, size in enumerate(SIZES)]
            same = sum(a == b for a, b in zip(old, new))
            shifts = {b - a for a, b in zip(old, new)}
            where = [process.prefetch(f"m{i}", i % (2 if other else 1), size) for i, size in enumerate(SIZES)] and "prefetched"
            print(f"places: {'two GPUs' if other else 'one GPU'}: {same} of {len(old)} at their old addresses, {len(shifts)} distances; {where}")
            process.end()


def arena():
    """Does one allocation of managed memory come back to its address, made first, and after others?"""
    for what in ("first", "after others"):
        same = 0
        for try_ in range(5):
            process = Process("process")
            if what == "after others":
                for i in range(20):
                    process.allocate(f"d{i}", i)
            old = process.managed("arena", 4 << 30)
            for i in range(20):
                process.allocate(f"e{i}", i)
            process.free("arena")
            failed = cycle(process)
            if failed:
                print(f"arena: {what}: {failed}")
            elif process.managed("arena", 4 << 30) == old:
                same += 1
            process.end()
        print(f"arena: {what}: {same} of 5 at the old address")


QUESTIONS = {f.__name__: f for f in (peer, access, across, exchange, places, arena)}

if __name__ == "__main__":
    sys.exit(main(QUESTIONS))
