"""Draws random values when it is restored, by the libraries that are loaded, and again when they were seeded anew; see TestClonesLanguages."""

import ctypes
import random
import secrets
import ssl
import uuid

import cryo_contract
import numpy

libc = ctypes.CDLL("libc.so.6")
boringssl = ctypes.CDLL("/usr/lib/x86_64-linux-gnu/android/libcrypto.so.0")
libssl = ctypes.CDLL("libssl.so.3")
libssl.TLS_server_method.restype = libssl.SSL_CTX_new.restype = ctypes.c_void_p
libssl.SSL_CTX_new.argtypes = [ctypes.c_void_p]
libssl.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]


def called(function, *more):
    data = ctypes.create_string_buffer(16)
    function(data, 16, *more)
    return data.raw.hex()


class Made:
    """What a program has made of random values before its snapshot."""

    def __init__(self):
        self.own = random.Random()
        self.numpy = numpy.random.default_rng()
        self.server = libssl.SSL_CTX_new(libssl.TLS_server_method())

    def tickets(self):
        keys = ctypes.create_string_buffer(80)
        if libssl.SSL_CTX_ctrl(self.server, 58, 80, keys) != 1:  # SSL_CTRL_GET_TLSEXT_TICKET_KEYS
            raise RuntimeError("OpenSSL does not say its keys")
        return keys.raw.hex()


def draw(word, made):
    for name, value in {
        "getrandom": called(libc.getrandom, 0),
        "arc4random": called(libc.arc4random_buf),
        "BoringSSL RAND_bytes": called(boringssl.RAND_bytes),
        "OpenSSL RAND_bytes": ssl.RAND_bytes(16).hex(),
        "OpenSSL keys of TLS session tickets": made.tickets(),
        "Python random": random.getrandbits(64),
        "Python random.Random": made.own.getrandbits(64),
        "Python secrets": secrets.token_hex(16),
        "Python uuid.uuid4": uuid.uuid4(),
        "Python hash of a string": hash("cryo"),
        "numpy.random": numpy.random.bytes(8).hex(),
        "numpy.random.default_rng": made.numpy.bytes(8).hex(),
    }.items():
        print(word, "%s: %s" % (name, value))


made = Made()
draw("first", made)  # what is made by the first call is there
contract = cryo_contract.Contract()
contract.ready()
print("waits", flush=True)
while True:
    event, _ = contract.wait()
    if event == cryo_contract.RESTORED:
        draw("drawn", made)
        cryo_contract.renew()
        draw("renewed", Made())
        print("over", flush=True)
