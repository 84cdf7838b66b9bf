"""Prints the errors that the driver reports of any GPU (Xid), a line each, until it is ended.

    xids.py

NVML's events are all that a container sees of them; the kernel's log has their details.
"""

import ctypes
import time

CRITICAL = 8  # nvmlEventTypeXidCriticalError
TIMEOUT = 10  # NVML_ERROR_TIMEOUT


class Event(ctypes.Structure):
    _fields_ = [("device", ctypes.c_void_p), ("type", ctypes.c_ulonglong), ("data", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


nvml = ctypes.CDLL("libnvidia-ml.so.1")


def call(name, *arguments):
    r = getattr(nvml, name)(*arguments)
    if r not in (0, TIMEOUT):
        raise RuntimeError(f"{name}: NVML error {r}")
    return r


call("nvmlInit_v2")
count, events, numbers = ctypes.c_uint(), ctypes.c_void_p(), {}
call("nvmlDeviceGetCount_v2", ctypes.byref(count))
call("nvmlEventSetCreate", ctypes.byref(events))
for i in range(count.value):
    handle = ctypes.c_void_p()
    call("nvmlDeviceGetHandleByIndex_v2", i, ctypes.byref(handle))
    call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(CRITICAL), events)
    numbers[handle.value] = i
print(f"waits for errors of {count.value} GPUs", flush=True)
event = Event()
while True:
    if call("nvmlEventSetWait_v2", events, ctypes.byref(event), 1000) == 0:
        now = time.time()
        print(time.strftime("%H:%M:%S", time.gmtime(now)) + f"{now % 1:.3f}"[1:], f"GPU {numbers.get(event.device)}: Xid {event.data}", flush=True)
