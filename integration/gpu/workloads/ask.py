"""Answers the runner of the cases: a question is a file, and so is the answer, so that both are where the container is.

The runner writes /srv/ask-N, a line "SEQUENCE QUESTION [ARGUMENT...]", for process N of the container, which takes the file away
and writes /srv/answer-N: {"seq": SEQUENCE, "ok": true, "life": ..., ...}. Answer 0 is given unasked when the program is ready. Both
files are moved into place whole. WORK names another directory.
"""

import json
import os
import time
import traceback


class Desk:
    def __init__(self, number=0):
        self.directory = os.environ.get("WORK", "/srv")
        self.number = number
        self.life = os.urandom(8).hex()
        self.ticks = 0

    def path(self, name):
        return f"{self.directory}/{name}-{self.number}"

    def put(self, name, text):
        path = self.path(name)
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)

    def answer(self, seq, ok=True, **state):
        head = {"seq": seq, "ok": bool(ok), "life": self.life, "pid": os.getpid(), "ticks": self.ticks}
        self.put("answer", json.dumps(head | state))

    def poll(self):
        """Gives (sequence, words), or None while nothing is asked."""
        try:
            with open(self.path("ask")) as f:
                words = f.read().split()
        except FileNotFoundError:
            return None
        os.unlink(self.path("ask"))
        return int(words[0]), words[1:]

    def serve(self, handlers, tick, pause=0.01):
        """Answers questions by their handlers, which give (ok, state), and calls tick in between, for ever."""
        self.answer(0)
        while True:
            tick()
            self.ticks += 1
            asked = self.poll()
            if asked:
                seq, words = asked
                try:
                    ok, state = handlers[words[0]](*words[1:])
                except Exception as e:  # the runner shall see what is wrong
                    traceback.print_exc()
                    ok, state = False, {"error": f"{type(e).__name__}: {e}"}
                self.answer(seq, ok, **state)
            time.sleep(pause)
