"""Needs no GPU: Python and its libraries, with threads and some memory, come through as everything else does."""

import hashlib
import os
import threading
import time

from ask import Desk

memory = os.urandom(64 << 20)
digest = hashlib.sha256(memory).hexdigest()
counts = [0, 0, 0]


def count(i):
    while True:
        counts[i] += 1
        time.sleep(0.01)


for i in range(len(counts)):
    threading.Thread(target=count, args=(i,), daemon=True).start()


def check():
    before = list(counts)
    time.sleep(0.1)
    running = all(now > then for now, then in zip(counts, before))
    return running and hashlib.sha256(memory).hexdigest() == digest, {"counts": counts}


Desk().serve({"check": check}, lambda: None)
