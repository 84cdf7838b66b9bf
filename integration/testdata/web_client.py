# The client: it has one connection to the web server and one to its cache, counts requests over each, and never connects again. It ends when there is /tmp/stop.
import http.client
import os
import socket
import time


def connect(make):
    """Returns a connection to a server, which may not listen yet."""
    while True:
        try:
            return make()
        except ConnectionRefusedError:
            time.sleep(0.1)


def web():
    c = http.client.HTTPConnection(os.environ["WEB"], 8000)
    c.connect()
    c.auto_open = 0  # a further request fails when the server has closed the connection
    return c


cache = connect(lambda: socket.create_connection((os.environ["CACHE"], 6379)))
answers = cache.makefile("rb")
server = connect(web)
count = 0
try:
    while not os.path.exists("/tmp/stop"):
        count += 1
        server.request("GET", "/")
        r = server.getresponse()
        served = r.read()
        if (r.status, served) != (200, b"%d" % count):
            raise ValueError(f"the web server has answered {r.status} {served}")
        cache.sendall(b"INCR counted\r\n")
        counted = answers.readline()
        if counted != b":%d\r\n" % count:
            raise ValueError(f"the cache has answered {counted}")
        if count % 50 == 0:
            print("count", count, flush=True)
    print("stopped at", count, flush=True)
except Exception as e:
    print(f"wrong: request {count}: {e!r}", flush=True)
time.sleep(3600)  # the test reads what was printed
