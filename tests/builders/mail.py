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
    """The folder INBOX, and settings of the server that a test can change."""

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
        for message in raw:
            self.messages[self.next_uid] = message
            self.next_uid += 1

    def number_anew(self) -> None:
        self.validity += 1
        messages = list(self.messages.values())
        self.messages, self.next_uid = {}, 100
        self.add(*messages)

    def serve(self, stream: socketserver.StreamRequestHandler) -> None:
        _ImapSession(self, stream).run()


class _ImapSession:
    def __init__(self, box: Mailbox, stream: socketserver.StreamRequestHandler) -> None:
        self.box, self.stream = box, stream

    def send(self, *lines: str) -> None:
        self.stream.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    def run(self) -> None:
        self.send(f"* OK [CAPABILITY {self.box.capabilities}] ready")
        while line := self.stream.rfile.readline().decode().strip():
            tag, _, rest = line.partition(" ")
            name = " ".join(rest.split(" ")[: 2 if rest.startswith("UID ") else 1]).upper()
            self.box.commands.append(rest if name not in ("LOGIN", "AUTHENTICATE") else name)
            if self.box.cut_at == name:
                return
            status = self.respond(name, rest)
            self.send(f"{tag} {status}")
            if name == "LOGOUT":
                return

    def respond(self, name: str, rest: str) -> str:  # noqa: C901 - a case for each command
        match name:
            case "CAPABILITY":
                self.send(f"* CAPABILITY {self.box.capabilities}")
            case "AUTHENTICATE":
                self.send("+ ")
                credentials = base64.b64decode(self.stream.rfile.readline()).decode()
                return self.login(credentials == f"\0{USER}\0{PASSWORD}")
            case "LOGIN":
                return self.login(rest == f'LOGIN "{USER}" "{PASSWORD}"')
            case "SELECT" | "EXAMINE":
                if '"INBOX"' not in rest:
                    return "NO [NONEXISTENT] no such mailbox"
                self.send(
                    f"* {len(self.box.messages)} EXISTS", f"* OK [UIDVALIDITY {self.box.validity}] valid"
                )
                self.send(f"* OK [UIDNEXT {self.box.next_uid}] next")
            case "UID SEARCH":
                self.send("* SEARCH " + " ".join(map(str, self.search(rest))))
            case "UID FETCH":
                self.fetch(rest)
            case "UID STORE":
                flag = re.findall(r"\(\\(\w+)\)", rest)[0]
                for uid in self.uids(rest):
                    self.box.flags.setdefault(uid, set()).add(flag)
            case "UID MOVE":
                return self.move(rest)
            case "LOGOUT":
                self.send("* BYE")
        return "OK done"

    def login(self, is_valid: bool) -> str:
        refusal = self.box.login_refusal or "[AUTHENTICATIONFAILED] Invalid credentials"
        return "OK welcome" if is_valid and not self.box.login_refusal else f"NO {refusal}"

    def search(self, rest: str) -> list[int]:
        """Return the messages that match. As in a real server, `n:*` always includes the last message."""
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
                self.send(f"* 1 FETCH (UID {uid} RFC822.SIZE {len(raw)})")
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
class SmtpServer:
    """An SMTP server that stores messages, with replies that a test can choose."""

    #: Sender, recipients and the message itself.
    received: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    extensions: tuple[str, ...] = ("AUTH PLAIN LOGIN", "8BITMIME", "SMTPUTF8")
    #: Replies to a command instead of the usual one: the key is the beginning of its line.
    replies: dict[str, str] = field(default_factory=dict)
    #: Close the connection after a message was taken, before saying so.
    cut_after_data: bool = False
    commands: list[str] = field(default_factory=list)

    def serve(self, stream: socketserver.StreamRequestHandler) -> None:  # noqa: C901 - a case for each command
        def send(*lines: str) -> None:
            stream.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

        sender, recipients = "", list[str]()
        send("220 ready")
        while line := stream.rfile.readline().decode().strip():
            name = line.split(" ")[0].upper()
            self.commands.append(name)
            reply = next(
                (text for start, text in self.replies.items() if line.lower().startswith(start.lower())), None
            )
            if reply is not None:
                send(reply)
                continue
            match name:
                case "EHLO":
                    send(
                        *(f"250-{extension}" for extension in ("here", *self.extensions)), "250 SIZE 1000000"
                    )
                case "AUTH":
                    is_valid = (
                        line.split(" ")[-1] == base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode()
                    )
                    send("235 welcome" if is_valid else f"535 5.7.8 bad password {line}")
                case "MAIL":
                    sender, recipients = line.split("<")[1].split(">")[0], []
                    send("250 ok")
                case "RCPT":
                    recipients.append(line.split("<")[1].split(">")[0])
                    send("250 ok")
                case "DATA":
                    send("354 go on")
                    self.received.append((sender, recipients, b"".join(_lines_of_data(stream))))
                    if self.cut_after_data:
                        return
                    send("250 taken")
                case "QUIT":
                    send("221 bye")
                    return
                case _:
                    send("250 ok")


def _lines_of_data(stream: socketserver.StreamRequestHandler) -> Iterator[bytes]:
    while (line := stream.rfile.readline()) not in (b".\r\n", b""):
        yield line.removeprefix(b".") if line.startswith(b"..") else line


@contextmanager
def listening(
    serve: Callable[[socketserver.StreamRequestHandler], None], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Listen, and return the port. Each connection is served in a thread of its own."""

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
            """Print nothing: in some tests the client closes the connection early."""

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
    """Return the TLS context of a server on localhost, and the certificate that clients have to trust."""
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
