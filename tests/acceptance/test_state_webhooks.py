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
#: After a kill a delivery is due again when its timeout is over.
DUE_SOON_AFTER_A_KILL = SETTINGS.replace("timeout: 20s", "timeout: 1s")
#: A URL with a secret that only its receiver may see.
SECRET_PATH = "/hook/canary-in-the-url"


def a_webhook_workspace(directory: Path, more: str = "", settings: str = SETTINGS) -> Workspace:
    workspace = a_workspace(directory, more)
    workspace.config.write_text(settings + workspace.config.read_text())
    return workspace


def submit(workspace: Workspace, receiver: Receiver, plugin: str = "echo", *words: str) -> str:
    url = receiver.url(SECRET_PATH)
    job = workspace.json("run", plugin, "handle", "--no-wait", "--state-webhook-url", url, *words)
    return str(job["job_id"])


def has_ended(requests: list[ReceivedRequest]) -> bool:
    return any(request.body["state"] in ("done", "failed") for request in requests)


def has_more_than(count: int) -> Callable[[list[ReceivedRequest]], bool]:
    return lambda requests: len(requests) > count


def first_deliveries(requests: list[ReceivedRequest]) -> dict[str, list[dict[str, Any]]]:
    """Return the bodies of first deliveries by their jobs, in the order in which they came."""
    seen_ids: set[str] = set()
    bodies: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for request in requests:
        if request.headers["webhook-id"] not in seen_ids:
            seen_ids.add(request.headers["webhook-id"])
            bodies[request.body["job_id"]].append(request.body)
    return bodies


def assert_chain(bodies: list[dict[str, Any]]) -> None:
    """Assert that every state webhook has all keys, and names the state before it."""
    assert [list(body) for body in bodies] == [KEYS] * len(bodies)
    states = [body["state"] for body in bodies]
    assert [body["previous_state"] for body in bodies] == [None, *states[:-1]]


def test_a_job_tells_of_itself_from_first_to_last(tmp_path: Path) -> None:
    """The states are queued, loading, working and done; the result comes with done."""
    workspace = a_webhook_workspace(tmp_path)
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        job_id = submit(workspace, receiver, "echo", "--payload", '{"model": "llama"}')
        requests = receiver.wait_for(has_ended)
        daemon.wait_for("delivery.delivered", lambda line: line["state"] == "done")
        deliveries = workspace.json("webhook", "deliveries", "--job", job_id)["deliveries"]
        assert "canary" not in str(daemon.whole_log()) + str(deliveries)
    bodies = first_deliveries(requests)[job_id]
    assert_chain(bodies)
    assert [body["state"] for body in bodies] == ["queued", "loading", "working", "done"]
    assert [body["result"] for body in bodies] == [None, None, None, "done"]
    assert {body["model"] for body in bodies} == {"llama"}
    assert [(row["state"], row["status"]) for row in reversed(deliveries)] == [
        (body["state"], "delivered") for body in bodies
    ]


def test_a_failing_job_tells_of_each_attempt(tmp_path: Path) -> None:
    """The job is queued again while it waits for a retry, and failed at the end with its error."""
    workspace = a_webhook_workspace(tmp_path, "  broken: {retry: {max_attempts: 2, backoff_base: 50ms}}\n")
    workspace.plugin("broken", BROKEN)
    with a_receiver() as receiver, a_daemon(workspace):
        job_id = submit(workspace, receiver, "broken")
        bodies = first_deliveries(receiver.wait_for(has_ended))[job_id]
    assert_chain(bodies)
    assert [(body["state"], body["attempt"]) for body in bodies] == [
        ("queued", 1), ("loading", 1), ("working", 1),
        ("queued", 2), ("loading", 2), ("working", 2),
        ("failed", 2),
    ]  # fmt: skip
    assert bodies[-1]["error"] == "it is broken"
    assert [body["error"] for body in bodies[:-1]] == [None] * 6


def test_bad_receivers_do_not_delay_others(tmp_path: Path) -> None:
    """Slow, dead, failing and redirecting receivers delay no job and no other receiver."""
    workspace = a_webhook_workspace(tmp_path, settings=SETTINGS.replace("timeout: 20s", "timeout: 1m"))
    never = threading.Event()
    with (
        a_receiver(lambda *_: Reply(after=never)) as slow,
        a_receiver(lambda *_: Reply(status=500)) as failing,
        a_receiver() as good,
        a_receiver() as redirect_target,
        socket.socket() as closed_socket,
        a_daemon(workspace) as daemon,
    ):
        failing_redirect = Reply(status=302, headers={"Location": redirect_target.url()})
        with a_receiver(lambda *_: failing_redirect) as redirecting:
            closed_socket.bind(("127.0.0.1", 0))
            unreachable = Receiver(port=closed_socket.getsockname()[1])
            for receiver in (slow, failing, redirecting, unreachable):
                for _ in range(5):
                    submit(workspace, receiver)
            job_id = submit(workspace, good)
            assert workspace.json("job", "wait", job_id, "--timeout", "30s")["status"] == "succeeded"
            bodies = first_deliveries(good.wait_for(has_ended))[job_id]
            # The slow receiver still has its first request, and the good one did not wait for it.
            assert len(slow.requests) == 1
            daemon.wait_for("delivery.dropped", lambda line: str(redirecting.port) in line["receiver"])
            assert redirect_target.requests == []
        never.set()
    assert [body["state"] for body in bodies] == ["queued", "loading", "working", "done"]


def test_a_retry_after_of_the_receiver_is_honoured(tmp_path: Path) -> None:
    """A delivery is repeated after the time of a 429; others of the job are sent meanwhile."""
    workspace = a_webhook_workspace(tmp_path)

    def busy_once(_request: ReceivedRequest, earlier: int) -> Reply:
        return Reply(status=429, headers={"Retry-After": "4"}) if earlier == 0 else Reply()

    with a_receiver(busy_once) as receiver, a_daemon(workspace) as daemon:
        submit(workspace, receiver)
        failed = daemon.wait_for("delivery.failed")
        assert (failed["state"], failed["http_status"]) == ("queued", 429)
        delivered = daemon.wait_for("delivery.delivered", lambda line: line["state"] == "queued")
        assert delivered["attempts"] == 2
        assert receiver.states() == ["queued", "loading", "working", "done", "queued"]


def test_state_webhooks_are_signed_and_can_be_verified(tmp_path: Path) -> None:
    """Requests have `X-Foreman-Signature` over the body, and the signature of Standard Webhooks."""
    settings = SETTINGS.replace("{allow", "{secret_ref: hooks, allow")
    workspace = a_webhook_workspace(
        tmp_path, settings=f"{settings}tokens: [{{name: hooks, key: shared-canary}}]\n"
    )
    workspace.ductile("config", "lock")
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        submit(workspace, receiver)
        for request in receiver.wait_for(has_ended):
            assert request.headers["x-foreman-signature"] == sign_body("shared-canary", request.raw)
            Webhook(b"shared-canary").verify(request.raw, dict(request.headers))
        assert "canary" not in str(daemon.whole_log())


def kill(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()


def test_a_kill_loses_no_event(tmp_path: Path) -> None:
    """The outbox is durable: a pending delivery is made after the crash."""
    workspace = a_webhook_workspace(
        tmp_path, "  slow: {retry: {backoff_base: 100ms}}\n", DUE_SOON_AFTER_A_KILL
    )
    workspace.plugin("slow", SLOW)
    release = threading.Event()

    def hold_first(_request: ReceivedRequest, earlier: int) -> Reply:
        return Reply(after=release if earlier == 0 else None)

    with a_receiver(hold_first) as receiver:
        with a_daemon(workspace) as daemon:
            job_id = submit(workspace, receiver, "slow")
            receiver.wait_for(bool)
            daemon.wait_until_started(job_id)
            kill(daemon)
        script = workspace.config.parent / "plugins" / "slow" / "run.sh"
        script.write_text(answering({"status": "ok", "result": "at last"}))
        with a_daemon(workspace):
            requests = receiver.wait_for(has_ended)
        release.set()
    bodies = first_deliveries(requests)[job_id]
    assert_chain(bodies)
    assert [body["state"] for body in bodies][:1] == ["queued"]
    assert bodies[-1]["state"] == "done"
    assert "queued" in [body["state"] for body in bodies[1:]]  # recovery reports that it waits again
    assert sum(request.headers["x-ductile-sequence"] == "1" for request in requests) == 2


def test_a_stopped_daemon_delivers_when_it_is_back(tmp_path: Path) -> None:
    """State webhooks are delivered after a restart, also for a job that ran without a daemon."""
    workspace = a_webhook_workspace(tmp_path)
    with a_receiver() as receiver:
        job = workspace.json("run", "echo", "handle", "--state-webhook-url", receiver.url(SECRET_PATH))
        assert job["status"] == "succeeded"
        assert receiver.requests == []
        pending = workspace.json("webhook", "deliveries", "--status", "pending")["deliveries"]
        assert [row["url"] for row in pending] == [f"http://127.0.0.1:{receiver.port}/…"] * len(pending)
        with a_daemon(workspace) as daemon:
            requests = receiver.wait_for(has_ended)
            assert daemon.end() == 0
    assert_chain(first_deliveries(requests)[job["job_id"]])


def test_a_dropped_delivery_can_be_sent_again(tmp_path: Path) -> None:
    """A delivery is dropped after its last attempt, and can be listed and sent again."""
    workspace = a_webhook_workspace(tmp_path, settings=SETTINGS.replace("max_attempts: 4", "max_attempts: 1"))
    with a_receiver(lambda *_: Reply(status=500)) as receiver, a_daemon(workspace) as daemon:
        job_id = submit(workspace, receiver)
        dropped = daemon.wait_for("delivery.dropped", lambda line: line["state"] == "done")
        receiver.decide = lambda *_: Reply()
        (row,) = workspace.json("webhook", "deliveries", "--job", job_id, "-n", "1")["deliveries"]
        assert (row["status"], row["last_status"], row["id"]) == ("dropped", 500, dropped["delivery"])
        assert workspace.json("webhook", "resend", row["id"], "--dry-run")["dry_run"]
        assert workspace.json("webhook", "resend", row["id"])["job_id"] == job_id
        daemon.wait_for("delivery.delivered", lambda line: line["delivery"] == row["id"])
        assert workspace.json("webhook", "resend", "nobody", status=1)["error"]["code"] == "not_found"
    assert receiver.requests[-1].body["state"] == "done"


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "not a url", "http://127.0.0.1/", "http://[::ffff:10.0.0.1]/", "http://1/"]
)
def test_a_url_that_cannot_be_called_is_refused_at_once(tmp_path: Path, url: str) -> None:
    """A bad scheme, an unparsable URL and a literal forbidden address are refused without a job."""
    workspace = a_workspace(tmp_path)
    refusal = workspace.json("run", "echo", "handle", "--state-webhook-url", url, status=1)
    assert refusal["error"]["code"] == "refused"
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
    """A run is queued, loading and working with its first step, then done or failed; steps send nothing."""
    plugins = "  broken: {retry: {max_attempts: 1}}\n"
    workspace = an_api_workspace(tmp_path, plugins, more=SETTINGS + PIPELINES)
    workspace.plugin("broken", BROKEN)
    workspace.ductile("config", "lock")
    with a_receiver() as receiver_of_run, a_receiver() as receiver_of_failing_run, an_api(workspace) as api:
        run = api.post(
            "/pipeline/two", {"payload": {"model": "m"}, "state_webhook_url": receiver_of_run.url()}
        )
        failing_run = api.post(
            "/pipeline/bad", {"payload": {}, "state_webhook_url": receiver_of_failing_run.url()}
        )
        bodies_by_job = first_deliveries(receiver_of_run.wait_for(has_ended))
        failing_bodies_by_job = first_deliveries(receiver_of_failing_run.wait_for(has_ended))
    assert list(bodies_by_job) == [run["job_id"]]
    assert_chain(bodies_by_job[run["job_id"]])
    assert [body["state"] for body in bodies_by_job[run["job_id"]]] == [
        "queued",
        "loading",
        "working",
        "done",
    ]
    assert bodies_by_job[run["job_id"]][-1]["result"] == "done"
    assert {body["model"] for body in bodies_by_job[run["job_id"]]} == {"m"}
    assert_chain(failing_bodies_by_job[failing_run["job_id"]])
    assert [body["state"] for body in failing_bodies_by_job[failing_run["job_id"]]] == [
        "queued",
        "loading",
        "working",
        "failed",
    ]
    assert failing_bodies_by_job[failing_run["job_id"]][-1]["error"]


def test_several_kills_in_a_row_lose_no_event_and_no_order(tmp_path: Path) -> None:
    """Every state webhook arrives; first deliveries are in order for each job."""
    quick = "  quick: {uses: echo, retry: {backoff_base: 50ms}}\n"
    workspace = a_webhook_workspace(tmp_path, quick, DUE_SOON_AFTER_A_KILL)
    job_ids: list[str] = []
    with a_receiver() as receiver:
        for _ in range(3):
            with a_daemon(workspace) as daemon:
                count = len(receiver.requests)
                job_ids += [submit(workspace, receiver, "quick") for _ in range(2)]
                receiver.wait_for(has_more_than(count + 1))
                kill(daemon)

        def all_ended(requests: list[ReceivedRequest]) -> bool:
            bodies_by_job = first_deliveries(requests)
            return all(
                bodies_by_job[job_id] and bodies_by_job[job_id][-1]["state"] == "done" for job_id in job_ids
            )

        with a_daemon(workspace):
            bodies_by_job = first_deliveries(receiver.wait_for(all_ended))
    assert sorted(bodies_by_job) == sorted(job_ids)
    for bodies in bodies_by_job.values():
        assert_chain(bodies)
