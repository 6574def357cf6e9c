"""mail reads a mailbox of an IMAP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from builders.mail import PASSWORD, USER, Mailbox, a_certificate, listening
from builders.shipped import PluginResult, ask


def a_message(subject: str, text: str = "Hello", **headers: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Grace <grace@example.org>"
    message["To"] = "ada@example.org, Bob <bob@example.org>"
    message["Subject"] = subject
    message["Message-ID"] = f"<{subject.encode().hex()}@example.org>"
    message["Date"] = "Sun, 08 Feb 2026 11:00:00 +0100"
    for name, value in headers.items():
        message[name] = value
    message.set_content(text)
    return message


def raw(subject: str) -> bytes:
    return a_message(subject).as_bytes().replace(b"\n", b"\r\n")


@dataclass
class MailboxPoller:
    """The plugin with a mailbox; polls follow one another with the state that Ductile would keep."""

    box: Mailbox
    port: int
    config: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def poll(self, *, keep_state: bool = True, **config: Any) -> PluginResult:
        """Poll once. With `keep_state=False` the response is lost, as if the daemon had died."""
        imap = {
            "host": "127.0.0.1",
            "port": self.port,
            "security": "none",
            "user": USER,
            "password": PASSWORD,
        }
        settings = {"imap": imap, **self.config, **config}
        response = ask("mail", "poll", config=settings, state=self.state)
        assert "canary" not in response.stderr + json.dumps(response.answer)
        if response.kind == "ok" and keep_state:
            self.state |= response.state
        return response

    def subjects(self, **options: Any) -> list[str]:
        response = self.poll(**options)
        assert response.kind == "ok", response
        return [event["payload"]["subject"] for event in response.events]


@pytest.fixture
def poller() -> Iterator[MailboxPoller]:
    box = Mailbox()
    box.add(raw("old"))
    with listening(box.serve) as port:
        yield MailboxPoller(box, port)


def test_each_new_message_is_emitted_once(poller: MailboxPoller) -> None:
    """Earlier messages are not emitted; lost events are emitted again; the mailbox is not changed."""
    first = poller.subjects()
    second = poller.subjects()
    poller.box.add(raw("a"), raw("b"))
    lost_events, repeated, last = poller.subjects(keep_state=False), poller.subjects(), poller.subjects()
    assert (first, second, lost_events, repeated, last) == ([], [], ["a", "b"], ["a", "b"], [])
    assert not any(command.startswith(("SELECT", "UID STORE")) for command in poller.box.commands)
    assert not any("BODY[" in command for command in poller.box.commands), "that would mark it as read"


def test_an_event_has_headers_text_and_attachments(poller: MailboxPoller) -> None:
    message = a_message("caf\xe9", "Text\n", **{"In-Reply-To": "<x@y>"})
    message.add_alternative("<p>not this</p>", subtype="html")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="a.pdf")
    message.add_attachment(a_message("inner"))
    poller.poll()
    poller.box.add(message.as_bytes())
    (event,) = poller.poll().events
    payload = event["payload"]
    assert payload["from"] == {"name": "Grace", "address": "grace@example.org"}
    assert [recipient["address"] for recipient in payload["to"]] == ["ada@example.org", "bob@example.org"]
    assert (payload["subject"], payload["date"]) == ("caf\xe9", "2026-02-08T10:00:00Z")
    assert (payload["text"], payload["in_reply_to"], payload["truncated"]) == ("Text\n", "<x@y>", False)
    document, inner = payload["attachments"]
    assert (document["name"], document["size"], inner["media_type"]) == ("a.pdf", 4, "message/rfc822")
    assert event["dedupe_key"] == f"mail:{USER}@127.0.0.1:{poller.port}/INBOX:7:2"


def test_many_messages_come_over_several_polls(poller: MailboxPoller) -> None:
    poller.box.add(*(raw(str(number)) for number in range(5)))
    polls = [poller.subjects(initial=True, max_messages=3) for _ in range(3)]
    assert polls == [["old", "0", "1"], ["2", "3", "4"], []]


def test_nothing_is_lost_or_repeated_when_the_server_numbers_anew(poller: MailboxPoller) -> None:
    """UIDVALIDITY changes: known messages are recognised by their headers, new ones are found."""
    poller.config = {"initial": True, "max_messages": 2}
    before = [poller.subjects()]
    poller.box.add(raw("a"), raw("b"))
    before += [poller.subjects()]
    poller.box.add(raw("c"), raw("d"), raw("e"))
    poller.box.number_anew()
    after = [poller.subjects() for _ in range(3)]
    assert (before, after) == ([["old"], ["a", "b"]], [["c", "d"], ["e"], []])
    searches = [command for command in poller.box.commands if "SINCE" in command]
    assert len(searches) == 2, "until all have been looked at"


def test_messages_are_marked_or_moved_when_their_events_are_stored(poller: MailboxPoller) -> None:
    """Messages are not marked before, because the response of the poll may be lost."""
    poller.config = {"initial": True, "mark": "seen", "move_to": "Done"}
    assert poller.subjects(keep_state=False) == ["old"]
    assert (poller.box.flags, poller.box.moved) == ({}, {})
    assert poller.subjects() == ["old"]
    assert poller.box.moved == {}
    assert poller.subjects() == []
    assert (poller.box.flags, poller.box.moved) == ({1: {"Seen"}}, {1: "Done"})
    assert poller.subjects() == []


@pytest.mark.parametrize(
    ("config", "capabilities", "message"),
    [({"move_to": "Missing"}, None, "no such mailbox"), ({"move_to": "X"}, "IMAP4rev1", "cannot move")],
)
def test_messages_that_cannot_be_moved_are_a_fault_of_the_configuration(
    poller: MailboxPoller, config: dict[str, Any], capabilities: str | None, message: str
) -> None:
    poller.box.capabilities = capabilities or poller.box.capabilities
    poller.poll(initial=True, **config)
    response = poller.poll(initial=True, **config)
    assert response.failed_for_good(message)
    assert response.exit_code == 78


def test_attachments_are_saved_under_safe_names(poller: MailboxPoller, tmp_path: Path) -> None:
    """No name leaves the directory, hides a file or replaces another one; they are artifacts of the job."""
    names = [
        "../../etc/passwd",
        "..\\evil.exe",
        ".bashrc",
        "a.txt",
        "a.txt",
        "n\xe4me " + "x" * 300 + ".pdf",
        "/",
        "a\r\nb",
    ]
    message = a_message("files")
    for name in names:
        message.add_attachment(
            name.encode(), maintype="application", subtype="x", filename=name.replace("\r\n", "_")
        )
    poller.box.add(message.as_bytes())
    root = tmp_path / "saved"
    poller.poll()
    poller.state["last_uid"] = 1
    first = poller.poll(keep_state=False, save_attachments_to=str(root))
    second = poller.poll(save_attachments_to=str(root))
    assert first.answer["artifacts"] == second.answer["artifacts"]
    saved = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert saved[:5] == ["7-2/1-passwd", "7-2/2-evil.exe", "7-2/3-bashrc", "7-2/4-a.txt", "7-2/5-a.txt"]
    assert len(saved) == len(names)
    assert all(len(name) < 130 for name in saved)
    assert not (tmp_path / "etc").exists()
    assert {Path(artifact["path"]).read_bytes() for artifact in first.answer["artifacts"]} == {
        name.replace("\r\n", "\r\n").encode() for name in names
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no headers at all",
        b'Subject: =?utf-8?q?=ff=fe?=\r\nFrom: "\r\nDate: never\r\n\r\n\xff\xfe',
        b"Content-Type: text/plain; charset=nonsense\r\n\r\n\xe9",
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: multipart/mixed\r\n\r\n--x",
        b"From: a@b, <>, @@, \xff <c@d>\r\nTo: undisclosed:;\r\nContent-Type: message/rfc822\r\n\r\n",
        b"Content-Transfer-Encoding: base64\r\nContent-Type: image/png; name*=utf-8''%ff\r\n\r\n!!!",
    ],
)
def test_a_malformed_message_is_an_event_like_any_other(poller: MailboxPoller, content: bytes) -> None:
    """A malformed message does not stop later ones."""
    poller.poll()
    poller.box.add(content, raw("next"))
    response = poller.poll()
    assert response.kind == "ok", response
    assert [event["payload"]["uid"] for event in response.events] == [2, 3]


def test_a_large_message_is_emitted_with_its_headers_only(poller: MailboxPoller) -> None:
    poller.box.add(a_message("large", "x" * 5000).as_bytes().replace(b"\n", b"\r\n"))
    response = poller.poll(initial=True, max_bytes=2000)
    assert [(event["payload"]["subject"], event["payload"]["truncated"]) for event in response.events] == [
        ("old", False),
        ("large", True),
    ]


def test_text_is_taken_from_html_if_there_is_no_other(poller: MailboxPoller) -> None:
    message = a_message("html")
    message.set_content("<style>a{}</style><p>One</p><p>Two &amp; three</p>", subtype="html")
    poller.poll()
    poller.box.add(message.as_bytes())
    assert poller.poll().events[0]["payload"]["text"] == "One\n\nTwo & three"


def test_refused_logins(poller: MailboxPoller) -> None:
    """A wrong or expired password is permanent, a server in trouble is not; neither shows the password."""
    for refusal in ("[AUTHENTICATIONFAILED] canary pass is wrong", "[EXPIRED] password expired"):
        poller.box.login_refusal = refusal
        response = poller.poll()
        assert response.failed_for_good("refuses the login")
        assert response.exit_code == 78
    poller.box.login_refusal = "[UNAVAILABLE] try later"
    assert poller.poll().may_be_tried_again("try later")
    poller.box.login_refusal, poller.box.capabilities = None, "IMAP4rev1"
    assert poller.subjects() == [], "without AUTH=PLAIN it is LOGIN"


@pytest.mark.parametrize("command", ["SELECT", "EXAMINE", "UID SEARCH", "UID FETCH"])
def test_a_connection_that_is_cut_is_tried_again(poller: MailboxPoller, command: str) -> None:
    poller.box.cut_at = command
    poller.config = {"mark": "seen"} if command == "SELECT" else {}
    assert poller.poll(initial=True).may_be_tried_again("IMAP")
    assert poller.state == {}


def test_tls_is_used_and_the_certificate_is_checked(tmp_path: Path) -> None:
    context, certificate = a_certificate(tmp_path)
    box = Mailbox()
    with listening(box.serve, context) as port:
        config = {"imap": {"host": "localhost", "port": port, "user": USER, "password": PASSWORD}}
        trusted = ask("mail", "poll", config=config, environ={"SSL_CERT_FILE": str(certificate)})
        unknown = ask("mail", "poll", config=config)
    assert trusted.kind == "ok", trusted
    assert unknown.may_be_tried_again("certificate is not accepted")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"imap": {"user": "a"}},
        {"imap": {"host": "h"}},
        {"imap": {"host": "h", "user": "a", "security": "ssl"}},
        {"imap": {"host": "mail.example.org", "user": "a", "security": "none"}},
        {"imap": {"host": "h", "user": "a", "port": 0}},
        {"imap": {"host": "h", "user": "a"}, "mark": "read"},
        {"imap": {"host": "h", "user": "a"}, "save_attachments_to": "here"},
    ],
)
def test_faults_of_the_configuration_end_with_status_78(config: dict[str, Any]) -> None:
    response = ask("mail", "poll", config=config)
    assert response.failed_for_good("`")
    assert response.exit_code == 78
