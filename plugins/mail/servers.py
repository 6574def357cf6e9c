"""Settings of mail servers, and connections to them: TLS from the start, after STARTTLS, or none."""

from __future__ import annotations

import imaplib
import smtplib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ductile_sdk import ConfigFailure, Failure

SECURITY = ("tls", "starttls", "none")
PORTS = {("imap", "tls"): 993, ("smtp", "tls"): 465, ("smtp", "starttls"): 587, ("smtp", "none"): 25}
#: To these a password may go without encryption: it does not leave the machine.
LOCAL = ("localhost", "127.0.0.1", "::1")
#: Replies of an IMAP server to a login that may succeed later.
TEMPORARY = ("[UNAVAILABLE]", "[INUSE]", "[LIMIT]", "[SERVERBUG]")
TEMPORARY_SMTP = range(400, 500)


class Server(NamedTuple):
    host: str
    port: int
    security: str
    user: str | None
    password: str
    timeout: float


def read_server(config: dict[str, Any], kind: str, timeout: float) -> Server:
    """Return `imap` or `smtp` of the configuration, checked."""
    given = config.get(kind)
    if not isinstance(given, dict) or not isinstance(given.get("host"), str) or not given["host"].strip():
        raise ConfigFailure(
            f"`{kind}` in the plugin's config has to be a map with `host`, `user`, `password`"
        )
    security = given.get("security", "tls")
    if security not in SECURITY:
        raise ConfigFailure(f"`{kind}.security` has to be one of {', '.join(SECURITY)}")
    port = given.get("port", PORTS.get((kind, security), 143))
    if not isinstance(port, int) or not 0 < port < 2**16:
        raise ConfigFailure(f"`{kind}.port` has to be a number from 1 to 65535")
    user = given.get("user")
    if kind == "imap" and not user:
        raise ConfigFailure("`imap.user` is missing in the plugin's config")
    if user and security == "none" and given["host"] not in LOCAL:
        words = "a password is not sent without encryption, except to this machine"
        raise ConfigFailure(f"`{kind}.security: none`: {words}")
    password = str(given.get("password") or "")
    return Server(given["host"], port, security, None if not user else str(user), password, timeout)


@contextmanager
def imap_connection(server: Server) -> Iterator[imaplib.IMAP4]:
    """Yield a connection that is logged in."""
    with reported(f"IMAP server {server.host}"):
        box = _open_imap(server)
        try:
            _login_imap(box, server)
            yield box
        finally:
            with suppress(OSError, imaplib.IMAP4.error):
                box.logout()


def _open_imap(server: Server) -> imaplib.IMAP4:
    if server.security == "tls":
        context = ssl.create_default_context()
        return imaplib.IMAP4_SSL(server.host, server.port, ssl_context=context, timeout=server.timeout)
    box = imaplib.IMAP4(server.host, server.port, timeout=server.timeout)
    if server.security == "starttls":
        if "STARTTLS" not in box.capabilities:
            box.shutdown()
            raise ConfigFailure(f"{server.host} does not offer STARTTLS: set `imap.security: tls`")
        box.starttls(ssl.create_default_context())
    return box


def _login_imap(box: imaplib.IMAP4, server: Server) -> None:
    try:
        if "AUTH=PLAIN" in box.capabilities:
            box.authenticate("PLAIN", lambda _: f"\0{server.user}\0{server.password}".encode())
        else:
            box.login(quoted(server.user or ""), server.password)
    except imaplib.IMAP4.abort:
        raise
    except imaplib.IMAP4.error as error:
        text = _masked(str(error), server.password)
        if any(word in text.upper() for word in TEMPORARY):
            raise Failure(f"{server.host} does not let {server.user} log in now: {text}") from None
        raise ConfigFailure(f"{server.host} refuses the login of {server.user}: {text}") from None


@contextmanager
def smtp_connection(server: Server) -> Iterator[smtplib.SMTP]:
    """Yield a connection, logged in if there is a user. Errors after the work are of no consequence."""
    with reported(f"SMTP server {server.host}"):
        connection = _open_smtp(server)
        try:
            _login_smtp(connection, server)
            yield connection
        finally:
            with suppress(OSError, smtplib.SMTPException):
                connection.quit()


def _open_smtp(server: Server) -> smtplib.SMTP:
    name = socket.gethostname() or "localhost"
    if server.security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(
            server.host, server.port, local_hostname=name, timeout=server.timeout, context=context
        )
    connection = smtplib.SMTP(server.host, server.port, local_hostname=name, timeout=server.timeout)
    if server.security == "starttls":
        try:
            connection.starttls(context=ssl.create_default_context())
        except smtplib.SMTPNotSupportedError:
            connection.close()
            raise ConfigFailure(f"{server.host} does not offer STARTTLS: set `smtp.security: tls`") from None
    return connection


def _login_smtp(connection: smtplib.SMTP, server: Server) -> None:
    if server.user is None:
        return
    try:
        connection.login(server.user, server.password)
    except smtplib.SMTPNotSupportedError:
        raise ConfigFailure(f"{server.host} offers no login: leave out `smtp.user`") from None
    except smtplib.SMTPAuthenticationError as error:
        text = _masked(said(error.smtp_error), server.password)
        words = f"{server.user}: {error.smtp_code} {text}"
        if error.smtp_code in TEMPORARY_SMTP:
            raise Failure(f"{server.host} does not let {words} log in now") from None
        raise ConfigFailure(f"{server.host} refuses the login of {words}") from None


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn what the network and the servers do into failures that may be retried."""
    try:
        yield
    except TimeoutError:
        raise Failure(f"{what} does not answer in time") from None
    except ssl.SSLCertVerificationError as error:
        raise Failure(f"{what}: its certificate is not accepted: {error.verify_message}") from None
    except smtplib.SMTPResponseException as error:
        retry = error.smtp_code not in range(500, 600)
        raise Failure(f"{what} answers {error.smtp_code} {said(error.smtp_error)}", retry=retry) from None
    except (OSError, EOFError, imaplib.IMAP4.error, smtplib.SMTPException) as error:
        raise Failure(f"{what}: {error or type(error).__name__}") from None


def said(answer: bytes | str) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())[:300]


def quoted(text: str) -> str:
    """A quoted string of IMAP. Line breaks cannot be in one."""
    if any(character in text for character in "\r\n\0"):
        raise ConfigFailure("a name in the plugin's config has a line break in it")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _masked(text: str, secret: str) -> str:
    return text.replace(secret, "***") if secret else text
