"""A web server that is worth restoring: it fills a cache, says that it is ready, and gives each clone an identity and a seed of its own."""

import http.server
import os
import uuid

import cryo_contract

state = {"identity": str(uuid.uuid4())}


def on_event(name, changes):
    print("event", name, flush=True)
    if changes is None:
        return
    for variable, value in changes["environment"].items():  # as the program would have been started with
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    cryo_contract.renew()  # the old state is that of every clone
    state["identity"] = changes["hostname"]["is"] + "-" + str(uuid.uuid4())
    print("identity", state["identity"], "generation", changes["generation"], flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("%s has %d entries\n" % (state["identity"], len(cache))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


contract = cryo_contract.Contract()
contract.follow(on_event)
cache = {n: n * n for n in range(100000)}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler)
contract.ready()
print("waits", flush=True)
server.serve_forever()
