"""mail sends messages to an SMTP server."""

from __future__ import annotations

import email
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from builders.mail import PASSWORD, USER, SmtpServer, a_certificate, listening
from builders.shipped import PluginResult, ask

HELLO = {"to": "ada@example.org", "subject": "Hi", "text": "Hello"}


@dataclass
class Sender:
    office: SmtpServer
    port: int
    state: dict[str, Any] = field(default_factory=dict)

    def send(self, payload: dict[str, Any], **config: Any) -> PluginResult:
        smtp = {
            "host": "127.0.0.1",
            "port": self.port,
            "security": "none",
            "user": USER,
            "password": PASSWORD,
        }
        settings = {"smtp": smtp, "from": "Ductile <bot@example.org>", **config}
        response = ask("mail", "send", config=settings, payload=payload, state=self.state)
        assert "canary" not in response.stderr + json.dumps(response.answer)
        if response.kind == "ok":
            self.state |= response.state
        return response

    def message(self, index: int = -1) -> EmailMessage:
        parsed = email.message_from_bytes(self.office.received[index][2], policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


@pytest.fixture
def sender() -> Iterator[Sender]:
    office = SmtpServer()
    with listening(office.serve) as port:
        yield Sender(office, port)


def test_a_message_is_sent_with_text_html_and_attachments(sender: Sender, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"%PDF")
    payload = {
        "to": ["Ada <ada@example.org>", "bob@example.org"],
        "cc": "eve@example.org",
        "subject": "caf\xe9",
        "text": "a\n.b",
        "html": "<p>a</p>",
        "attachments": ["report.pdf", {"path": str(tmp_path / "report.pdf"), "name": "x.txt"}],
        "in_reply_to": "<q@example.org>",
    }
    response = sender.send(payload, attachments_root=str(tmp_path))
    recipients = ["ada@example.org", "bob@example.org", "eve@example.org"]
    assert response.answer["result"]["accepted"] == recipients
    assert sender.office.received[0][:2] == ("bot@example.org", recipients)
    message = sender.message()
    assert (message["From"], message["Subject"]) == ("Ductile <bot@example.org>", "caf\xe9")
    assert message["Message-ID"] == response.answer["result"]["message_id"]
    assert (message["In-Reply-To"], message["Auto-Submitted"]) == ("<q@example.org>", "auto-generated")
    body = message.get_body(("plain",))
    assert body is not None
    assert body.get_content() == "a\r\n.b\r\n"
    assert [part.get_filename() for part in message.iter_attachments()] == ["report.pdf", "x.txt"]


def test_a_retry_sends_the_same_message_again(sender: Sender) -> None:
    """The connection breaks after the server has accepted the message; the Message-ID is the same."""
    sender.office.cut_after_data = True
    assert sender.send(HELLO).may_be_tried_again("SMTP server")
    sender.office.cut_after_data = False
    assert sender.send(HELLO).kind == "ok"
    assert sender.message(0)["Message-ID"] == sender.message(1)["Message-ID"]


def test_the_same_id_is_not_sent_twice(sender: Sender) -> None:
    first, repeated, other = (sender.send({**HELLO, "id": message_id}) for message_id in ("a", "a", "b"))
    assert first.answer["result"]["message_id"] == repeated.answer["result"]["message_id"]
    assert repeated.answer["result"]["sent_before"] is True
    assert other.answer["result"]["message_id"] != first.answer["result"]["message_id"]
    assert len(sender.office.received) == 2


INJECTION = "x\r\nBcc: eve@example.org"


@pytest.mark.parametrize(
    "payload",
    [
        {"subject": INJECTION},
        {"subject": "x\nBcc: eve@example.org"},
        {"subject": "x\rBcc: eve@example.org"},
        {"to": f"ada@example.org{INJECTION}"},
        {"to": ["ada@example.org>\r\nRCPT TO:<eve@example.org"]},
        {"to": "Ada\r\nBcc: eve@example.org <ada@example.org>"},
        {"cc": INJECTION},
        {"reply_to": INJECTION},
        {"in_reply_to": "<a@b>\r\nBcc: eve@example.org"},
        {"attachments": [{"path": "a", "name": INJECTION}]},
        {"to": "not an address"},
        {"to": "a@b@c"},
        {"to": {"a": 1}},
    ],
)
def test_headers_cannot_be_injected(sender: Sender, payload: dict[str, Any], tmp_path: Path) -> None:
    """A line break is refused before a message is sent."""
    (tmp_path / "a").touch()
    response = sender.send({**HELLO, **payload}, attachments_root=str(tmp_path))
    assert response.failed_for_good("`")
    assert sender.office.received == []


def test_recipients_can_be_limited(sender: Sender) -> None:
    config = {"allow_to": ["ada@example.org", "@Example.com"]}
    assert sender.send({**HELLO, "to": ["ADA@example.org", "x@example.com"]}, **config).kind == "ok"
    assert sender.send({**HELLO, "cc": "eve@evil.org"}, **config).failed_for_good("allow_to")
    assert sender.send({**HELLO, "to": "x@evil.example.com"}, **config).failed_for_good("allow_to")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "link", "missing", "."])
def test_attachments_come_from_their_directory_only(sender: Sender, tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("canary")
    (root / "link").symlink_to(tmp_path / "secret")
    assert sender.send({**HELLO, "attachments": [path]}, attachments_root=str(root)).failed_for_good(path)
    assert sender.send({**HELLO, "attachments": [path]}).failed_for_good("`attachments_root`")
    assert sender.office.received == []


@pytest.mark.parametrize(
    ("replies", "retry"),
    [
        ({"RCPT": "550 5.1.1 no such user"}, False),
        ({"RCPT": "451 4.7.1 greylisted"}, True),
        ({"MAIL": "552 5.3.4 too large"}, False),
        ({"MAIL": "421 4.3.2 shutting down"}, True),
        ({"DATA": "554 5.7.1 spam"}, False),
        ({"DATA": "451 4.3.0 try later"}, True),
        ({"AUTH": "454 4.7.0 temporary failure"}, True),
        ({"AUTH": "535 5.7.8 canary pass is wrong"}, False),
    ],
)
def test_a_refusal_is_tried_again_as_its_code_says(
    sender: Sender, replies: dict[str, str], retry: bool
) -> None:
    sender.office.replies = replies
    response = sender.send(HELLO)
    assert response.kind == "error"
    assert response.answer["retry"] is retry
    assert response.exit_code == (78 if "535" in str(replies) else 0)
    assert response.state == {}


def test_one_refused_recipient_does_not_send_it_twice_to_the_others(sender: Sender) -> None:
    sender.office.replies = {"RCPT TO:<bob": "550 unknown"}
    response = sender.send({**HELLO, "to": "ada@example.org, bob@example.org"})
    assert response.answer["result"]["accepted"] == ["ada@example.org"]
    assert response.answer["result"]["refused"] == {"bob@example.org": "550 unknown"}
    assert response.answer["logs"][0]["level"] == "error"


def test_a_farewell_that_fails_does_not_undo_the_sending(sender: Sender) -> None:
    sender.office.replies = {"QUIT": "421 too busy"}
    assert sender.send(HELLO).kind == "ok"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"from": None}, "`from`"),
        ({"from": "nobody"}, "`from`"),
        ({"smtp": None}, "`smtp`"),
        ({"allow_to": "x"}, "`allow_to`"),
        ({"smtp": {"host": "127.0.0.1", "security": "starttls"}}, "does not offer STARTTLS"),
    ],
)
def test_faults_of_the_configuration_end_with_status_78(
    sender: Sender, config: dict[str, Any], message: str
) -> None:
    if isinstance(config.get("smtp"), dict):
        config["smtp"]["port"] = sender.port
    response = sender.send(HELLO, **config)
    assert response.failed_for_good(message)
    assert response.exit_code == 78


@pytest.mark.parametrize("payload", [{"to": "a@b.org"}, {"text": "x"}, {**HELLO, "attachments": "a"}])
def test_a_payload_without_what_is_needed_is_refused(sender: Sender, payload: dict[str, Any]) -> None:
    assert sender.send(payload).failed_for_good("`")


def test_events_of_other_plugins_can_be_sent(sender: Sender) -> None:
    """A title is a subject and a result is a text; recipients come from the configuration."""
    sender.send({"title": "T", "result": "R"}, to=["ada@example.org"])
    assert sender.message()["Subject"] == "T"
    assert sender.message().get_content() == "R\r\n"


def test_tls_is_used_and_health_logs_in(tmp_path: Path) -> None:
    context, certificate = a_certificate(tmp_path)
    office = SmtpServer()
    with listening(office.serve, context) as port:
        smtp = {"host": "localhost", "port": port, "user": USER, "password": PASSWORD}
        config = {"smtp": smtp, "from": "bot@example.org"}
        environ = {"SSL_CERT_FILE": str(certificate)}
        healthy = ask("mail", "health", config=config, environ=environ)
        unknown = ask("mail", "send", config=config, payload=HELLO)
    assert healthy.answer["result"] == "healthy: SMTP"
    assert "AUTH" in office.commands
    assert unknown.may_be_tried_again("certificate")
