"""IMAP and SMTP servers that speak the real protocols over sockets, as far as the mail plugin uses them."""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

USER, PASSWORD = "ada@example.org", "canary pass"


@dataclass(slots=True)
class Mailbox:
    """The folder INBOX and what a test changes about it."""

    messages: dict[int, bytes] = field(default_factory=dict)
    flags: dict[int, set[str]] = field(default_factory=dict)
    moved: dict[int, str] = field(default_factory=dict)
    validity: int = 7
    next_uid: int = 1
    capabilities: str = "IMAP4rev1 AUTH=PLAIN MOVE UIDPLUS"
    #: Sent instead of OK to a login.
    login_refusal: str | None = None
    #: Close the connection when this command comes.
    cut_at: str | None = None
    commands: list[str] = field(default_factory=list)

    def add(self, *raw: bytes) -> None:
        for each in raw:
            self.messages[self.next_uid] = each
            self.next_uid += 1

    def number_anew(self) -> None:
        self.validity += 1
        kept = list(self.messages.values())
        self.messages, self.next_uid = {}, 100
        self.add(*kept)

    def serve(self, stream: socketserver.StreamRequestHandler) -> None:
        _ImapSession(self, stream).run()


class _ImapSession:
    def __init__(self, box: Mailbox, stream: socketserver.StreamRequestHandler) -> None:
        self.box, self.stream = box, stream

    def say(self, *lines: str) -> None:
        self.stream.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    def run(self) -> None:
        self.say(f"* OK [CAPABILITY {self.box.capabilities}] ready")
        while line := self.stream.rfile.readline().decode().strip():
            tag, _, rest = line.partition(" ")
            name = " ".join(rest.split(" ")[: 2 if rest.startswith("UID ") else 1]).upper()
            self.box.commands.append(rest if name not in ("LOGIN", "AUTHENTICATE") else name)
            if self.box.cut_at == name:
                return
            answer = self.answer(name, rest)
            self.say(f"{tag} {answer}")
            if name == "LOGOUT":
                return

    def answer(self, name: str, rest: str) -> str:  # noqa: C901 - a case for each command
        match name:
            case "CAPABILITY":
                self.say(f"* CAPABILITY {self.box.capabilities}")
            case "AUTHENTICATE":
                self.say("+ ")
                given = base64.b64decode(self.stream.rfile.readline()).decode()
                return self.login(given == f"\0{USER}\0{PASSWORD}")
            case "LOGIN":
                return self.login(rest == f'LOGIN "{USER}" "{PASSWORD}"')
            case "SELECT" | "EXAMINE":
                if '"INBOX"' not in rest:
                    return "NO [NONEXISTENT] no such mailbox"
                self.say(
                    f"* {len(self.box.messages)} EXISTS", f"* OK [UIDVALIDITY {self.box.validity}] valid"
                )
                self.say(f"* OK [UIDNEXT {self.box.next_uid}] next")
            case "UID SEARCH":
                self.say("* SEARCH " + " ".join(map(str, self.search(rest))))
            case "UID FETCH":
                self.fetch(rest)
            case "UID STORE":
                flag = re.findall(r"\(\\(\w+)\)", rest)[0]
                for uid in self.uids(rest):
                    self.box.flags.setdefault(uid, set()).add(flag)
            case "UID MOVE":
                return self.move(rest)
            case "LOGOUT":
                self.say("* BYE")
        return "OK done"

    def login(self, right: bool) -> str:
        refusal = self.box.login_refusal or "[AUTHENTICATIONFAILED] Invalid credentials"
        return "OK welcome" if right and not self.box.login_refusal else f"NO {refusal}"

    def search(self, rest: str) -> list[int]:
        """As a real server does, `n:*` includes the last message, whatever its number."""
        first = re.search(r"UID (\d+):\*", rest)
        uids = sorted(self.box.messages)
        return [uid for uid in uids if first is None or uid >= int(first[1]) or uid == uids[-1]]

    def uids(self, rest: str) -> list[int]:
        listed = [int(number) for number in rest.split(" ")[2].split(",")]
        return [uid for uid in listed if uid in self.box.messages]

    def fetch(self, rest: str) -> None:
        for uid in self.uids(rest):
            raw = self.box.messages[uid]
            if "RFC822.SIZE" in rest:
                self.say(f"* 1 FETCH (UID {uid} RFC822.SIZE {len(raw)})")
                continue
            section = "BODY[HEADER]" if "HEADER" in rest else "BODY[]"
            raw = raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if "HEADER" in rest else raw
            self.stream.wfile.write(
                f"* 1 FETCH (UID {uid} {section} {{{len(raw)}}}\r\n".encode() + raw + b")\r\n"
            )

    def move(self, rest: str) -> str:
        if '"Missing"' in rest:
            return "NO [TRYCREATE] no such mailbox"
        for uid in self.uids(rest):
            self.box.moved[uid] = rest.split('"')[1]
            del self.box.messages[uid]
        return "OK moved"


@dataclass(slots=True)
class PostOffice:
    """Takes messages, and answers as a test says."""

    #: Sender, recipients and the message itself.
    taken: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    extensions: tuple[str, ...] = ("AUTH PLAIN LOGIN", "8BITMIME", "SMTPUTF8")
    #: Replies to a command instead of the usual one: the key is the beginning of its line.
    replies: dict[str, str] = field(default_factory=dict)
    #: Close the connection after a message was taken, before saying so.
    cut_after_data: bool = False
    commands: list[str] = field(default_factory=list)

    def serve(self, stream: socketserver.StreamRequestHandler) -> None:  # noqa: C901 - a case for each command
        def say(*lines: str) -> None:
            stream.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

        sender, recipients = "", list[str]()
        say("220 ready")
        while line := stream.rfile.readline().decode().strip():
            name = line.split(" ")[0].upper()
            self.commands.append(name)
            reply = next(
                (text for start, text in self.replies.items() if line.lower().startswith(start.lower())), None
            )
            if reply is not None:
                say(reply)
                continue
            match name:
                case "EHLO":
                    say(*(f"250-{each}" for each in ("here", *self.extensions)), "250 SIZE 1000000")
                case "AUTH":
                    right = line.split(" ")[-1] == base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode()
                    say("235 welcome" if right else f"535 5.7.8 bad password {line}")
                case "MAIL":
                    sender, recipients = line.split("<")[1].split(">")[0], []
                    say("250 ok")
                case "RCPT":
                    recipients.append(line.split("<")[1].split(">")[0])
                    say("250 ok")
                case "DATA":
                    say("354 go on")
                    self.taken.append((sender, recipients, b"".join(_lines_of_data(stream))))
                    if self.cut_after_data:
                        return
                    say("250 taken")
                case "QUIT":
                    say("221 bye")
                    return
                case _:
                    say("250 ok")


def _lines_of_data(stream: socketserver.StreamRequestHandler) -> Iterator[bytes]:
    while (line := stream.rfile.readline()) not in (b".\r\n", b""):
        yield line.removeprefix(b".") if line.startswith(b"..") else line


@contextmanager
def listening(
    serve: Callable[[socketserver.StreamRequestHandler], None], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """A port on which each connection is served in a thread of its own."""

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            if tls is not None:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def handle(self) -> None:
            serve(self)

        def finish(self) -> None:
            super().finish()
            self.request.close()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that leaves in the middle is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def a_certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for localhost, and the file that makes a client trust it."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
