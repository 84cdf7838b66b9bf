# The web server's application: it counts requests in its cache, over one connection, and answers with the count.
import os
import socket
import threading

lock = threading.Lock()
cache = socket.create_connection((os.environ["CACHE"], 6379))
answers = cache.makefile("rb")


def app(environ, start_response):
    with lock:
        cache.sendall(b"INCR served\r\n")
        count = answers.readline()
    body = count.strip().removeprefix(b":")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
