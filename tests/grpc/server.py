#!/usr/bin/python3
"""server.py FOLDER PORT [tls] [mutual] [NAME=NUMBER ...]: a gRPC server for tests, on 127.0.0.1, until its input ends.

Writes its port to its output (PORT 0: any that is free). With `tls` it has a certificate for 127.0.0.1 and "localhost"
of a CA of its own, which it makes: FOLDER/ca.crt; other.crt is one that did not sign it. With `mutual` it wants a
certificate from its clients, too, such as FOLDER/client.crt with client.key (locked.key has a password). NAME=NUMBER is an option of gRPC's, such
as grpc.max_connection_age_ms=500.

Its methods take and give bytes: /test/Echo gives back the request; /test/Size as many bytes as the request says;
/test/Sleep the request after as many ms as it says; /test/Fail ends with the code, and after a blank the message, that
the request names, with details; /test/Headers gives the metadata of the call; /test/Cancelled the number of calls of
Sleep that their clients gave up; /test/Peer whose connection it is."""
import asyncio
import logging
import os
import subprocess
import sys

os.environ["GRPC_VERBOSITY"] = "NONE"  # its clients are meant to fail
try:
    import grpc
except ImportError:
    print("missing", flush=True)
    sys.exit(0)

logging.disable(logging.CRITICAL)  # nor are calls that were given up news
CODES = {code.value[0]: code for code in grpc.StatusCode}
cancelled = 0


async def echo(request, context):
    return request


async def size(request, context):
    return bytes(i % 251 for i in range(251)) * (int(request) // 251) + b"x" * (int(request) % 251)


async def sleep(request, context):
    global cancelled
    try:
        await asyncio.sleep(int(request) / 1000)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return request


async def fail(request, context):
    code, _, message = request.decode().partition(" ")
    context.set_trailing_metadata((("grpc-status-details-bin", b"\x00details of " + code.encode()),))
    await context.abort(CODES[int(code)], message)


async def headers(request, context):
    lines = ["%s: %s" % (key, value) for key, value in context.invocation_metadata()]
    lines.append("remaining: %.3f" % context.time_remaining())
    return "\n".join(lines).encode()


async def count(request, context):
    return str(cancelled).encode()


async def peer(request, context):
    return context.peer().encode()


METHODS = {"/test/Echo": echo, "/test/Size": size, "/test/Sleep": sleep, "/test/Fail": fail, "/test/Headers": headers,
           "/test/Cancelled": count, "/test/Peer": peer}


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        method = METHODS.get(details.method)
        return method and grpc.unary_unary_rpc_method_handler(method)


def openssl(*words):
    subprocess.run(("openssl",) + words, check=True, stderr=subprocess.DEVNULL)


def authority(folder, name):
    path = os.path.join(folder, name)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-keyout", path + ".key", "-out", path + ".crt", "-subj", "/CN=" + name)


def certificate(folder, name, ca, extension):
    path, ca = os.path.join(folder, name), os.path.join(folder, ca)
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", path + ".key", "-out", path + ".csr", "-subj", "/CN=" + name)
    with open(path + ".ext", "w") as file:
        file.write(extension)
    openssl("x509", "-req", "-in", path + ".csr", "-CA", ca + ".crt", "-CAkey", ca + ".key", "-CAcreateserial",
            "-days", "2", "-extfile", path + ".ext", "-out", path + ".crt")


def read(folder, name):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def credentials(folder, mutual):
    if not os.path.exists(os.path.join(folder, "ca.crt")):
        authority(folder, "ca")
        authority(folder, "other")
        certificate(folder, "server", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:grpc.test")
        certificate(folder, "client", "ca", "extendedKeyUsage=clientAuth")
        openssl("ec", "-in", os.path.join(folder, "client.key"), "-aes256", "-passout", "pass:secret",
                "-out", os.path.join(folder, "locked.key"))
    pair = (read(folder, "server.key"), read(folder, "server.crt"))
    return grpc.ssl_server_credentials([pair], read(folder, "ca.crt") if mutual else None, mutual)


async def main(folder, port, *words):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    for word in words:
        name, equals, number = word.partition("=")
        if equals:
            options.append((name, int(number)))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Handlers(),))
    address = "127.0.0.1:" + port
    if "tls" in words:
        bound = server.add_secure_port(address, credentials(folder, "mutual" in words))
    else:
        bound = server.add_insecure_port(address)
    await server.start()
    print(bound, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # some of its calls may sleep


asyncio.run(main(*sys.argv[1:]))
