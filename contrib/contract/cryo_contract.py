"""Lets a program take part in its checkpoints and restores by cryo: see shim/CONTRACT.md.

It is one file that needs Python 3.8 and nothing else; copy it.

    contract = cryo_contract.Contract()
    contract.follow(on_event)   # in a thread; or call contract.wait() in one of your own
    ...                         # warm up
    contract.ready()

Where the container's environment names no control directory, nothing is done: ready() returns, and wait() waits for ever.
"""

import json
import os
import random
import sys
import threading

VARIABLE = "CRYO_CONTROL_DIR"
RESTORED = "restored"  # the program was restored; changes() has what is new
RESUMED = "resumed"  # it goes on after a checkpoint, whether there is a snapshot or not
VERSION = 1


class Contract:
    def __init__(self, directory=None):
        self.directory = directory or os.environ.get(VARIABLE)
        self._lines = None
        if not self.directory:
            return
        os.makedirs(self.directory, exist_ok=True)
        self.unready()  # an earlier process may have left it
        events = self._path("events")
        try:
            os.mkfifo(events, 0o600)
        except FileExistsError:
            pass
        # For writing, too: else an event is lost that comes between two reads.
        self._lines = os.fdopen(os.open(events, os.O_RDWR | os.O_CLOEXEC), "rb", buffering=0)

    def _path(self, name):
        return os.path.join(self.directory, name)

    def ready(self):
        """Says that the program's snapshot may be taken, from now on at any moment."""
        if self.directory:
            with open(self._path("ready"), "w", encoding="utf-8"):
                pass

    def unready(self):
        """Takes that back."""
        if self.directory:
            try:
                os.remove(self._path("ready"))
            except FileNotFoundError:
                pass

    def wait(self):
        """Waits for the next event, and returns its name and its generation, which is None unless the name is RESTORED. Nothing is polled."""
        if self._lines is None:
            threading.Event().wait()
        while True:
            words = self._lines.readline().decode().split()
            if words:
                return words[0], int(words[1]) if words[0] == RESTORED else None

    def changes(self):
        """Returns what is new, as the dictionary that CONTRACT.md describes. It is called after the event RESTORED."""
        with open(self._path("restored.json"), encoding="utf-8") as f:
            changes = json.load(f)
        if changes.get("version") != VERSION:
            raise ValueError("restored.json has the version %r, which is unknown" % changes.get("version"))
        return changes

    def follow(self, on_event):
        """Calls on_event(name, changes) for each event, in a thread; changes is None unless the name is RESTORED."""

        def run():
            while True:
                name, _ = self.wait()
                on_event(name, self.changes() if name == RESTORED else None)

        thread = threading.Thread(target=run, name="cryo", daemon=True)
        thread.start()
        return thread


def renew():
    """Seeds anew, by the kernel's randomness, what clones have in common: random, OpenSSL's generator, and those of numpy.random and torch if they are loaded.

    It is called after the event RESTORED, before anything else is drawn. Generators that the program has made itself (random.Random,
    numpy.random.default_rng, torch.Generator), and copies of OpenSSL in wheels, are the program's to make anew. What a thread draws meanwhile may be as in another clone.
    """
    import ssl

    random.seed()
    ssl.RAND_add(os.urandom(48), 48)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
