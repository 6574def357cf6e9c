"""State webhooks from a real daemon to real receivers, beside bad receivers and through crashes."""

from __future__ import annotations

import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from builders.daemons import BROKEN, SLOW, Daemon, Workspace, a_daemon, a_workspace, answering
from builders.http import an_api, an_api_workspace
from builders.receivers import ReceivedRequest, Receiver, Reply, a_receiver
from ductile.core.webhooks.signatures import sign_body

KEYS = [
    *("job_id", "state", "previous_state", "timestamp", "model", "attempt", "error", "result", "artifacts"),
    *("plugin", "command", "pipeline", "reason"),
]
SETTINGS = "state_webhooks: {allow: [127.0.0.1], timeout: 20s, backoff_base: 100ms, max_attempts: 4}\n"
#: After a kill a delivery is due again when its time is over.
DUE_SOON_AFTER_A_KILL = SETTINGS.replace("timeout: 20s", "timeout: 1s")
#: A URL with a secret that only its receiver may see.
SECRET_PATH = "/hook/canary-in-the-url"


def a_telling_workspace(directory: Path, more: str = "", settings: str = SETTINGS) -> Workspace:
    workspace = a_workspace(directory, more)
    workspace.config.write_text(settings + workspace.config.read_text())
    return workspace


def submit(workspace: Workspace, receiver: Receiver, plugin: str = "echo", *words: str) -> str:
    url = receiver.url(SECRET_PATH)
    said = workspace.json("run", plugin, "handle", "--no-wait", "--state-webhook-url", url, *words)
    return str(said["job_id"])


def is_over(requests: list[ReceivedRequest]) -> bool:
    return any(request.body["state"] in ("done", "failed") for request in requests)


def more_than(count: int) -> Callable[[list[ReceivedRequest]], bool]:
    return lambda requests: len(requests) > count


def by_job(requests: list[ReceivedRequest]) -> dict[str, list[dict[str, Any]]]:
    """First deliveries only, in the order in which they came."""
    seen: set[str] = set()
    sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for request in requests:
        if request.headers["webhook-id"] not in seen:
            seen.add(request.headers["webhook-id"])
            sent[request.body["job_id"]].append(request.body)
    return sent


def assert_chain(sent: list[dict[str, Any]]) -> None:
    """Every event names the one before it; all keys, always."""
    assert [list(body) for body in sent] == [KEYS] * len(sent)
    states = [body["state"] for body in sent]
    assert [body["previous_state"] for body in sent] == [None, *states[:-1]]


def test_a_job_tells_of_itself_from_first_to_last(tmp_path: Path) -> None:
    """Queued, loading, working, done; the result comes with done."""
    workspace = a_telling_workspace(tmp_path)
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        job_id = submit(workspace, receiver, "echo", "--payload", '{"model": "llama"}')
        requests = receiver.wait_for(is_over)
        daemon.wait_for("delivery.delivered", lambda line: line["state"] == "done")
        listed = workspace.json("webhook", "deliveries", "--job", job_id)["deliveries"]
        assert "canary" not in str(daemon.whole_log()) + str(listed)
    sent = by_job(requests)[job_id]
    assert_chain(sent)
    assert [body["state"] for body in sent] == ["queued", "loading", "working", "done"]
    assert [body["result"] for body in sent] == [None, None, None, "done"]
    assert {body["model"] for body in sent} == {"llama"}
    assert [(row["state"], row["status"]) for row in reversed(listed)] == [
        (body["state"], "delivered") for body in sent
    ]


def test_a_failing_job_tells_of_each_attempt(tmp_path: Path) -> None:
    """Queued again while it waits for a retry, failed at the end with the error."""
    workspace = a_telling_workspace(tmp_path, "  broken: {retry: {max_attempts: 2, backoff_base: 50ms}}\n")
    workspace.plugin("broken", BROKEN)
    with a_receiver() as receiver, a_daemon(workspace):
        job_id = submit(workspace, receiver, "broken")
        sent = by_job(receiver.wait_for(is_over))[job_id]
    assert_chain(sent)
    assert [(body["state"], body["attempt"]) for body in sent] == [
        ("queued", 1), ("loading", 1), ("working", 1),
        ("queued", 2), ("loading", 2), ("working", 2),
        ("failed", 2),
    ]  # fmt: skip
    assert sent[-1]["error"] == "it is broken"
    assert [body["error"] for body in sent[:-1]] == [None] * 6


def test_bad_receivers_do_not_delay_others(tmp_path: Path) -> None:
    """Slow, dead, failing and redirecting receivers delay no job and no other receiver."""
    workspace = a_telling_workspace(tmp_path, settings=SETTINGS.replace("timeout: 20s", "timeout: 1m"))
    never = threading.Event()
    with (
        a_receiver(lambda *_: Reply(after=never)) as slow,
        a_receiver(lambda *_: Reply(status=500)) as failing,
        a_receiver() as good,
        a_receiver() as innocent,
        socket.socket() as dead,
        a_daemon(workspace) as daemon,
    ):
        failing_redirect = Reply(status=302, headers={"Location": innocent.url()})
        with a_receiver(lambda *_: failing_redirect) as redirecting:
            dead.bind(("127.0.0.1", 0))
            absent = Receiver(port=dead.getsockname()[1])
            for receiver in (slow, failing, redirecting, absent):
                for _ in range(5):
                    submit(workspace, receiver)
            job_id = submit(workspace, good)
            assert workspace.json("job", "wait", job_id, "--timeout", "30s")["status"] == "succeeded"
            sent = by_job(good.wait_for(is_over))[job_id]
            # The slow one still has its first, and the good one did not wait for it.
            assert len(slow.requests) == 1
            daemon.wait_for("delivery.dropped", lambda line: str(redirecting.port) in line["receiver"])
            assert innocent.requests == []
        never.set()
    assert [body["state"] for body in sent] == ["queued", "loading", "working", "done"]


def test_a_retry_after_of_the_receiver_is_honoured(tmp_path: Path) -> None:
    """429 with Retry-After; the others of the job go out meanwhile."""
    workspace = a_telling_workspace(tmp_path)

    def busy_once(_request: ReceivedRequest, before: int) -> Reply:
        return Reply(status=429, headers={"Retry-After": "4"}) if before == 0 else Reply()

    with a_receiver(busy_once) as receiver, a_daemon(workspace) as daemon:
        submit(workspace, receiver)
        failed = daemon.wait_for("delivery.failed")
        assert (failed["state"], failed["http_status"]) == ("queued", 429)
        again = daemon.wait_for("delivery.delivered", lambda line: line["state"] == "queued")
        assert again["attempts"] == 2
        assert receiver.states() == ["queued", "loading", "working", "done", "queued"]


def test_they_are_signed_and_can_be_verified(tmp_path: Path) -> None:
    """`X-Foreman-Signature` over the body, and Standard Webhooks."""
    settings = SETTINGS.replace("{allow", "{secret_ref: hooks, allow")
    workspace = a_telling_workspace(
        tmp_path, settings=f"{settings}tokens: [{{name: hooks, key: shared-canary}}]\n"
    )
    workspace.ductile("config", "lock")
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        submit(workspace, receiver)
        for request in receiver.wait_for(is_over):
            assert request.headers["x-foreman-signature"] == sign_body("shared-canary", request.raw)
            Webhook(b"shared-canary").verify(request.raw, dict(request.headers))
        assert "canary" not in str(daemon.whole_log())


def kill(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()


def test_a_kill_loses_no_event(tmp_path: Path) -> None:
    """The outbox is durable; what was not delivered before a crash is delivered after it."""
    workspace = a_telling_workspace(
        tmp_path, "  slow: {retry: {backoff_base: 100ms}}\n", DUE_SOON_AFTER_A_KILL
    )
    workspace.plugin("slow", SLOW)
    hold = threading.Event()

    def hold_first(_request: ReceivedRequest, before: int) -> Reply:
        return Reply(after=hold if before == 0 else None)

    with a_receiver(hold_first) as receiver:
        with a_daemon(workspace) as daemon:
            job_id = submit(workspace, receiver, "slow")
            receiver.wait_for(bool)
            daemon.wait_until_started(job_id)
            kill(daemon)
        script = workspace.config.parent / "plugins" / "slow" / "run.sh"
        script.write_text(answering({"status": "ok", "result": "at last"}))
        with a_daemon(workspace):
            requests = receiver.wait_for(is_over)
        hold.set()
    sent = by_job(requests)[job_id]
    assert_chain(sent)
    assert [body["state"] for body in sent][:1] == ["queued"]
    assert sent[-1]["state"] == "done"
    assert "queued" in [body["state"] for body in sent[1:]]  # recovery reports that it waits again
    assert sum(request.headers["x-ductile-sequence"] == "1" for request in requests) == 2


def test_a_stopped_daemon_delivers_when_it_is_back(tmp_path: Path) -> None:
    """At least once, across restarts; also for a job that ran without any daemon."""
    workspace = a_telling_workspace(tmp_path)
    with a_receiver() as receiver:
        ran = workspace.json("run", "echo", "handle", "--state-webhook-url", receiver.url(SECRET_PATH))
        assert ran["status"] == "succeeded"
        assert receiver.requests == []
        pending = workspace.json("webhook", "deliveries", "--status", "pending")["deliveries"]
        assert [row["url"] for row in pending] == [f"http://127.0.0.1:{receiver.port}/…"] * len(pending)
        with a_daemon(workspace) as daemon:
            requests = receiver.wait_for(is_over)
            assert daemon.end() == 0
    assert_chain(by_job(requests)[ran["job_id"]])


def test_a_dropped_delivery_can_be_sent_again(tmp_path: Path) -> None:
    """Dropped and recorded after the last attempt; deliveries can be listed and re-sent."""
    workspace = a_telling_workspace(tmp_path, settings=SETTINGS.replace("max_attempts: 4", "max_attempts: 1"))
    with a_receiver(lambda *_: Reply(status=500)) as receiver, a_daemon(workspace) as daemon:
        job_id = submit(workspace, receiver)
        lost = daemon.wait_for("delivery.dropped", lambda line: line["state"] == "done")
        receiver.decide = lambda *_: Reply()
        (row,) = workspace.json("webhook", "deliveries", "--job", job_id, "-n", "1")["deliveries"]
        assert (row["status"], row["last_status"], row["id"]) == ("dropped", 500, lost["delivery"])
        assert workspace.json("webhook", "resend", row["id"], "--dry-run")["dry_run"]
        assert workspace.json("webhook", "resend", row["id"])["job_id"] == job_id
        daemon.wait_for("delivery.delivered", lambda line: line["delivery"] == row["id"])
        assert workspace.json("webhook", "resend", "nobody", status=1)["error"]["code"] == "not_found"
    assert receiver.requests[-1].body["state"] == "done"


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "not a url", "http://127.0.0.1/", "http://[::ffff:10.0.0.1]/", "http://1/"]
)
def test_a_url_that_cannot_be_called_is_refused_at_once(tmp_path: Path, url: str) -> None:
    """A bad scheme, unparsable URL or literal forbidden address is refused at submit; no job."""
    workspace = a_workspace(tmp_path)
    said = workspace.json("run", "echo", "handle", "--state-webhook-url", url, status=1)
    assert said["error"]["code"] == "refused"
    assert workspace.json("job", "list")["jobs"] == []


PIPELINES = """\
pipelines:
  - name: two
    on: two.wanted
    steps: [{id: first, uses: echo}, {id: second, uses: echo}]
  - name: bad
    on: bad.wanted
    steps: [{id: first, uses: echo}, {id: second, uses: broken}]
"""


def test_a_run_tells_of_the_whole_of_it(tmp_path: Path) -> None:
    """Queued; loading and working with its first member; done or failed. Members send nothing."""
    plugins = "  broken: {retry: {max_attempts: 1}}\n"
    workspace = an_api_workspace(tmp_path, plugins, more=SETTINGS + PIPELINES)
    workspace.plugin("broken", BROKEN)
    workspace.ductile("config", "lock")
    with a_receiver() as good, a_receiver() as bad, an_api(workspace) as api:
        run = api.post("/pipeline/two", {"payload": {"model": "m"}, "state_webhook_url": good.url()})
        other = api.post("/pipeline/bad", {"payload": {}, "state_webhook_url": bad.url()})
        sent = by_job(good.wait_for(is_over))
        failed = by_job(bad.wait_for(is_over))
    assert list(sent) == [run["job_id"]]
    assert_chain(sent[run["job_id"]])
    assert [body["state"] for body in sent[run["job_id"]]] == ["queued", "loading", "working", "done"]
    assert sent[run["job_id"]][-1]["result"] == "done"
    assert {body["model"] for body in sent[run["job_id"]]} == {"m"}
    assert_chain(failed[other["job_id"]])
    assert [body["state"] for body in failed[other["job_id"]]] == ["queued", "loading", "working", "failed"]
    assert failed[other["job_id"]][-1]["error"]


def test_several_kills_in_a_row_lose_no_event_and_no_order(tmp_path: Path) -> None:
    """Whenever the daemon dies, every event arrives; first arrivals are in order for each job."""
    quick = "  quick: {uses: echo, retry: {backoff_base: 50ms}}\n"
    workspace = a_telling_workspace(tmp_path, quick, DUE_SOON_AFTER_A_KILL)
    expected: list[str] = []
    with a_receiver() as receiver:
        for _ in range(3):
            with a_daemon(workspace) as daemon:
                before = len(receiver.requests)
                expected += [submit(workspace, receiver, "quick") for _ in range(2)]
                receiver.wait_for(more_than(before + 1))
                kill(daemon)

        def all_over(requests: list[ReceivedRequest]) -> bool:
            sent = by_job(requests)
            return all(sent[job_id] and sent[job_id][-1]["state"] == "done" for job_id in expected)

        with a_daemon(workspace):
            sent = by_job(receiver.wait_for(all_over))
    assert sorted(sent) == sorted(expected)
    for events in sent.values():
        assert_chain(events)
