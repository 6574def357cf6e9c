"""mail reads a mailbox of a server that speaks IMAP."""

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
class Reader:
    """Polls a mailbox again and again, with the state that Ductile would keep."""

    box: Mailbox
    port: int
    config: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def poll(self, *, stored: bool = True, **config: Any) -> PluginResult:
        """With `stored=False` the answer is lost, as if the daemon had died."""
        imap = {
            "host": "127.0.0.1",
            "port": self.port,
            "security": "none",
            "user": USER,
            "password": PASSWORD,
        }
        settings = {"imap": imap, **self.config, **config}
        said = ask("mail", "poll", config=settings, state=self.state)
        assert "canary" not in said.stderr + json.dumps(said.answer)
        if said.kind == "ok" and stored:
            self.state |= said.state
        return said

    def subjects(self, **options: Any) -> list[str]:
        said = self.poll(**options)
        assert said.kind == "ok", said
        return [event["payload"]["subject"] for event in said.events]


@pytest.fixture
def reader() -> Iterator[Reader]:
    box = Mailbox()
    box.add(raw("old"))
    with listening(box.serve) as port:
        yield Reader(box, port)


def test_each_new_message_is_emitted_once(reader: Reader) -> None:
    """What was there before is not; an answer that was lost is given again; the box is not changed."""
    first = reader.subjects()
    nothing = reader.subjects()
    reader.box.add(raw("a"), raw("b"))
    lost, again, none = reader.subjects(stored=False), reader.subjects(), reader.subjects()
    assert (first, nothing, lost, again, none) == ([], [], ["a", "b"], ["a", "b"], [])
    assert not any(command.startswith(("SELECT", "UID STORE")) for command in reader.box.commands)
    assert not any("BODY[" in command for command in reader.box.commands), "that would mark it as read"


def test_an_event_has_headers_text_and_attachments(reader: Reader) -> None:
    message = a_message("caf\xe9", "Text\n", **{"In-Reply-To": "<x@y>"})
    message.add_alternative("<p>not this</p>", subtype="html")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="a.pdf")
    message.add_attachment(a_message("inner"))
    reader.poll()
    reader.box.add(message.as_bytes())
    (event,) = reader.poll().events
    payload = event["payload"]
    assert payload["from"] == {"name": "Grace", "address": "grace@example.org"}
    assert [each["address"] for each in payload["to"]] == ["ada@example.org", "bob@example.org"]
    assert (payload["subject"], payload["date"]) == ("caf\xe9", "2026-02-08T10:00:00Z")
    assert (payload["text"], payload["in_reply_to"], payload["truncated"]) == ("Text\n", "<x@y>", False)
    document, inner = payload["attachments"]
    assert (document["name"], document["size"], inner["media_type"]) == ("a.pdf", 4, "message/rfc822")
    assert event["dedupe_key"] == f"mail:{USER}@127.0.0.1:{reader.port}/INBOX:7:2"


def test_many_messages_come_over_several_polls(reader: Reader) -> None:
    reader.box.add(*(raw(str(number)) for number in range(5)))
    polls = [reader.subjects(initial=True, max_messages=3) for _ in range(3)]
    assert polls == [["old", "0", "1"], ["2", "3", "4"], []]


def test_nothing_is_lost_or_repeated_when_the_server_numbers_anew(reader: Reader) -> None:
    """UIDVALIDITY changes: known messages are recognised by their headers, new ones are found."""
    reader.config = {"initial": True, "max_messages": 2}
    before = [reader.subjects()]
    reader.box.add(raw("a"), raw("b"))
    before += [reader.subjects()]
    reader.box.add(raw("c"), raw("d"), raw("e"))
    reader.box.number_anew()
    after = [reader.subjects() for _ in range(3)]
    assert (before, after) == ([["old"], ["a", "b"]], [["c", "d"], ["e"], []])
    searches = [command for command in reader.box.commands if "SINCE" in command]
    assert len(searches) == 2, "until all have been looked at"


def test_messages_are_marked_or_moved_when_their_events_are_stored(reader: Reader) -> None:
    """Not before: the answer of the poll that emitted them may be lost."""
    reader.config = {"initial": True, "mark": "seen", "move_to": "Done"}
    assert reader.subjects(stored=False) == ["old"]
    assert (reader.box.flags, reader.box.moved) == ({}, {})
    assert reader.subjects() == ["old"]
    assert reader.box.moved == {}
    assert reader.subjects() == []
    assert (reader.box.flags, reader.box.moved) == ({1: {"Seen"}}, {1: "Done"})
    assert reader.subjects() == []


@pytest.mark.parametrize(
    ("config", "capabilities", "words"),
    [({"move_to": "Missing"}, None, "no such mailbox"), ({"move_to": "X"}, "IMAP4rev1", "cannot move")],
)
def test_messages_that_cannot_be_moved_are_a_fault_of_the_configuration(
    reader: Reader, config: dict[str, Any], capabilities: str | None, words: str
) -> None:
    reader.box.capabilities = capabilities or reader.box.capabilities
    reader.poll(initial=True, **config)
    said = reader.poll(initial=True, **config)
    assert said.failed_for_good(words)
    assert said.exit_code == 78


def test_attachments_are_saved_under_safe_names(reader: Reader, tmp_path: Path) -> None:
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
    reader.box.add(message.as_bytes())
    root = tmp_path / "saved"
    reader.poll()
    reader.state["last_uid"] = 1
    first = reader.poll(stored=False, save_attachments_to=str(root))
    again = reader.poll(save_attachments_to=str(root))
    assert first.answer["artifacts"] == again.answer["artifacts"]
    saved = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert saved[:5] == ["7-2/1-passwd", "7-2/2-evil.exe", "7-2/3-bashrc", "7-2/4-a.txt", "7-2/5-a.txt"]
    assert len(saved) == len(names)
    assert all(len(name) < 130 for name in saved)
    assert not (tmp_path / "etc").exists()
    assert {Path(each["path"]).read_bytes() for each in first.answer["artifacts"]} == {
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
def test_a_malformed_message_is_an_event_like_any_other(reader: Reader, content: bytes) -> None:
    """It does not stop those after it."""
    reader.poll()
    reader.box.add(content, raw("next"))
    said = reader.poll()
    assert said.kind == "ok", said
    assert [event["payload"]["uid"] for event in said.events] == [2, 3]


def test_a_large_message_is_emitted_with_its_headers_only(reader: Reader) -> None:
    reader.box.add(a_message("large", "x" * 5000).as_bytes().replace(b"\n", b"\r\n"))
    said = reader.poll(initial=True, max_bytes=2000)
    assert [(event["payload"]["subject"], event["payload"]["truncated"]) for event in said.events] == [
        ("old", False),
        ("large", True),
    ]


def test_text_is_taken_from_html_if_there_is_no_other(reader: Reader) -> None:
    message = a_message("html")
    message.set_content("<style>a{}</style><p>One</p><p>Two &amp; three</p>", subtype="html")
    reader.poll()
    reader.box.add(message.as_bytes())
    assert reader.poll().events[0]["payload"]["text"] == "One\n\nTwo & three"


def test_refused_logins(reader: Reader) -> None:
    """A wrong or expired password is permanent, a server in trouble is not; neither shows the password."""
    for refusal in ("[AUTHENTICATIONFAILED] canary pass is wrong", "[EXPIRED] password expired"):
        reader.box.login_refusal = refusal
        said = reader.poll()
        assert said.failed_for_good("refuses the login")
        assert said.exit_code == 78
    reader.box.login_refusal = "[UNAVAILABLE] try later"
    assert reader.poll().may_be_tried_again("try later")
    reader.box.login_refusal, reader.box.capabilities = None, "IMAP4rev1"
    assert reader.subjects() == [], "without AUTH=PLAIN it is LOGIN"


@pytest.mark.parametrize("command", ["SELECT", "EXAMINE", "UID SEARCH", "UID FETCH"])
def test_a_connection_that_is_cut_is_tried_again(reader: Reader, command: str) -> None:
    reader.box.cut_at = command
    reader.config = {"mark": "seen"} if command == "SELECT" else {}
    assert reader.poll(initial=True).may_be_tried_again("IMAP")
    assert reader.state == {}


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
    said = ask("mail", "poll", config=config)
    assert said.failed_for_good("`")
    assert said.exit_code == 78
