"""Processes that watch GPU 0 by NVML every 50 ms, by a handle that they keep; each answers for itself.

    nvml_watch.py ROLE...

One process for each role:
    beside   has a CUDA context, too, and 256 MiB
    alone    does not use CUDA
    events   is as alone, and waits for events
    forked   is forked from the one before, which has NVML open; as NVML does after a fork, it answers that it is not initialised, until it is initialised in the child

It goes by pynvml where that is installed, else by the same calls of libnvidia-ml.so.1.
"""

import ctypes
import os
import sys
import threading
import time

PERIOD = 0.05
XID = 8  # nvmlEventTypeXidCriticalError


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Calls:
    """pynvml's functions that are used here."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")

    def call(self, name, *arguments):
        r = getattr(self.library, name)(*arguments)
        if r:
            raise RuntimeError(f"{name}: NVML error {r}")

    def nvmlInit(self):
        self.call("nvmlInit_v2")

    def nvmlShutdown(self):
        self.call("nvmlShutdown")

    def nvmlDeviceGetHandleByIndex(self, index):
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return handle

    def nvmlEventSetCreate(self):
        events = ctypes.c_void_p()
        self.call("nvmlEventSetCreate", ctypes.byref(events))
        return events

    def nvmlDeviceRegisterEvents(self, handle, types, events):
        self.call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(types), events)

    def nvmlDeviceGetMemoryInfo(self, handle):
        memory = Memory()
        self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return memory

    def nvmlDeviceGetUtilizationRates(self, handle):
        rates = Utilization()
        self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
        return rates


try:
    import pynvml as nvml
except ImportError:
    nvml = Calls()


def number(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


class Watch:
    def __init__(self):
        self.queries, self.errors, self.longest = 0, [], 0.0
        nvml.nvmlInit()
        self.handle = nvml.nvmlDeviceGetHandleByIndex(0)
        self.total = nvml.nvmlDeviceGetMemoryInfo(self.handle).total
        self.used = 0

    def query(self):
        began = time.monotonic()
        memory, rates = nvml.nvmlDeviceGetMemoryInfo(self.handle), nvml.nvmlDeviceGetUtilizationRates(self.handle)
        self.longest = max(self.longest, time.monotonic() - began)
        if memory.total != self.total or not 0 < memory.used <= memory.total or rates.gpu > 100:
            raise RuntimeError(f"{memory.used} of {memory.total} bytes used, had {self.total}; {rates.gpu} % busy")
        self.used, self.queries = memory.used, self.queries + 1

    def run(self):
        while not self.errors:
            try:
                self.query()
            except Exception as e:
                self.errors.append(f"query {self.queries}: {e}")
            time.sleep(PERIOD)

    def check(self):
        """A second's queries must succeed."""
        before, wanted = self.queries, int(0.5 / PERIOD)
        end = time.monotonic() + 30
        while self.queries < before + wanted and not self.errors and time.monotonic() < end:
            time.sleep(PERIOD)
        fresh = nvml.nvmlDeviceGetHandleByIndex(0)
        state = {"queries": self.queries, "errors": self.errors[:3], "used": self.used, "longest": round(self.longest, 3),
                 "same_handle": number(fresh) == number(self.handle), "by": getattr(nvml, "__name__", "ctypes")}
        return not self.errors and self.queries >= before + wanted, state


def serve(place, role, watch):
    threading.Thread(target=watch.run, daemon=True).start()
    checks = [watch.check]
    if role == "beside":
        import torch

        data = torch.arange(64 << 20, device="cuda", dtype=torch.int32)
        total = int(data.sum(dtype=torch.int64))

        def check():
            ok, state = watch.check()
            return ok and int(data.sum(dtype=torch.int64)) == total, state

        checks = [check]
    from ask import Desk

    Desk(place).serve({"check": checks[0]}, lambda: None)


def listen(watch):
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(watch.handle, XID, events)


def start(roles, place=0):
    """Runs the process of a place. Those behind it are forked: before it has NVML, but for one whose role says so."""
    role, later = roles[place], place + 1
    forks = later < len(roles)
    inherits = forks and roles[later] == "forked"
    if forks and not inherits and os.fork() == 0:
        return start(roles, later)
    watch = Watch()
    if role == "events":
        listen(watch)
    if inherits and os.fork() == 0:
        return start_forked(roles, later, watch)
    serve(place, role, watch)


def start_forked(roles, place, watch):
    """A child that has NVML as its parent had it: the calls fail, as they do without cryo."""

    def check():
        try:
            watch.query()
        except Exception as e:
            return "ninitialized" in str(e) or "error 1" in str(e), {"query": str(e)}
        return False, {"query": "succeeds"}

    from ask import Desk

    Desk(place).serve({"check": check}, lambda: None)


start(sys.argv[1:])
