#!/usr/bin/python3
"""server.py FOLDER [tls] [auth]: an SMTP server for tests, on 127.0.0.1, until its input ends.

Writes its port to its output, then, of every mail, FOLDER/N.json: its envelope, how it came, its source, and what
Python's own reader of mails makes of that. With `tls` it offers STARTTLS, with the certificate FOLDER/tls.crt, which it
makes. With `auth` it wants the user "cairn" with the password "p%ss word-1".

What a recipient's name begins with says what becomes of the mail: refuse (550 at RCPT), later (451), bad (554 after
DATA), stall (no answer to RCPT), hang (no answer to QUIT), echo (a 550 that repeats the mail's Subject)."""
import asyncio
import email
import email.policy
import json
import logging
import os
import ssl
import subprocess
import sys
import warnings

try:
    from aiosmtpd.smtp import SMTP, AuthResult
except ImportError:
    print("missing", flush=True)
    sys.exit(0)

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
USER, PASSWORD = b"cairn", b"p%ss word-1"


class Handler:
    def __init__(self, folder):
        self.folder, self.count = folder, 0

    async def handle_RCPT(self, server, session, envelope, address, options):
        name = address.split("@")[0]
        if name.startswith("refuse"):
            return "550 5.1.1 no such user here"
        if name.startswith("later"):
            return "451 4.7.1 come back later"
        if name.startswith("stall"):
            await asyncio.sleep(600)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_QUIT(self, server, session, envelope):
        if getattr(session, "hangs", False):
            await asyncio.sleep(600)
        return "221 Bye"

    async def handle_DATA(self, server, session, envelope):
        session.hangs = any(to.startswith("hang") for to in envelope.rcpt_tos)
        parsed = email.message_from_bytes(envelope.original_content, policy=email.policy.default)
        if any(to.startswith("bad") for to in envelope.rcpt_tos):
            return "554 5.6.0 we do not like it"
        if any(to.startswith("echo") for to in envelope.rcpt_tos):
            return "550 5.7.1 said " + parsed["Subject"]
        self.write(session, envelope, parsed)
        return "250 2.0.0 taken"

    def write(self, session, envelope, parsed):
        self.count += 1
        parts = [part for part in parsed.walk() if not part.is_multipart()]
        report = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "tls": session.ssl is not None,
            "user": session.auth_data.decode() if session.auth_data else None,
            "type": parsed.get_content_type(),
            "headers": {name: str(value) for name, value in parsed.items()},
            "defects": [str(defect) for part in parsed.walk() for defect in part.defects],
            "parts": [{"type": part.get_content_type(), "text": part.get_content().replace("\r\n", "\n")} for part in parts],
            "longest": max(len(line) for line in envelope.original_content.split(b"\r\n")),
            "bare": envelope.original_content.replace(b"\r\n", b"").count(b"\n"),
            "source": envelope.original_content.decode("ascii"),
        }
        path = os.path.join(self.folder, "%d.json" % self.count)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(report, file, ensure_ascii=False)
        os.rename(path + ".new", path)


def authenticate(server, session, envelope, mechanism, data):
    right = data.login == USER and data.password == PASSWORD
    return AuthResult(success=right, handled=False, auth_data=data.login)


def certificate(folder):
    key, crt = os.path.join(folder, "tls.key"), os.path.join(folder, "tls.crt")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", key, "-out", crt, "-days", "2", "-subj", "/CN=mail",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    return context


async def main(folder, *words):
    loop = asyncio.get_running_loop()
    tls = certificate(folder) if "tls" in words else None
    options = {"tls_context": tls, "loop": loop, "hostname": "test"}
    if "auth" in words:
        options.update(auth_required=True, auth_require_tls=tls is not None, authenticator=lambda *a: authenticate(*a))
    handler = Handler(folder)
    server = await loop.create_server(lambda: SMTP(handler, **options), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)  # some of its connections may sleep


asyncio.run(main(*sys.argv[1:]))
