"""State subscriptions of a job: chosen states, duplicates, receivers that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import answering
from builders.http import Api, an_api, an_api_workspace
from builders.receivers import ReceivedRequest, Receiver, Reply, a_receiver

SETTINGS = "state_webhooks: {allow: [127.0.0.1], timeout: 20s, backoff_base: 100ms, max_attempts: 4}\n"
PIPELINES = """\
pipelines:
  - name: gated
    on: gated.wanted
    steps: [{id: first, uses: gated}, {id: second, uses: echo}]
"""
#: Ends when the file that its payload names exists.
GATED = """\
#!/usr/bin/env python3
import json, os, sys, time
request = json.load(sys.stdin)
gate = (request.get("payload") or {}).get("gate") or request["event"]["payload"]["gate"]
while not os.path.exists(gate):
    time.sleep(0.01)
print(json.dumps({"status": "ok", "result": "opened"}))
"""
NINE_KEYS = [
    "job_id",
    "state",
    "previous_state",
    "timestamp",
    "model",
    "attempt",
    "error",
    "result",
    "artifacts",
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    plugins = "  gated: {}\n  broken: {retry: {max_attempts: 1}}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), plugins, more=SETTINGS + PIPELINES)
    workspace.plugin("gated", GATED)
    workspace.plugin("broken", answering({"status": "error", "error": "no", "retry": False}))
    workspace.ductile("config", "lock")
    with an_api(workspace) as api:
        yield api


def has_state(state: str) -> Callable[[list[ReceivedRequest]], bool]:
    return lambda requests: any(request.body["state"] == state for request in requests)


def wait_until_running(api: Api, job_id: str) -> None:
    api.daemon.wait_for("job.started", lambda line: line.get("job_id") == job_id)


@pytest.mark.parametrize("path", ["/plugin/gated/handle", "/pipeline/gated"])
@pytest.mark.parametrize("key_kind", ["key", "idempotency"])
def test_a_duplicate_of_a_live_job_is_sent_its_further_states(
    api: Api, tmp_path: Path, path: str, key_kind: str
) -> None:
    gate = tmp_path / "open"
    key = f"{path} {key_kind}"
    headers = {"Idempotency-Key": key} if key_kind == "idempotency" else {}
    body: dict[str, Any] = {"payload": {"gate": str(gate)}}
    if key_kind == "key":
        body |= {"dedupe_key": key, "dedupe_ttl": "1h"}
    with a_receiver() as first, a_receiver() as second:
        job_id = api.post(path, body | {"state_webhook_url": first.url()}, headers=headers)["job_id"]
        first.wait_for(has_state("working"))
        for _ in range(2):
            duplicate = api.post(path, body | {"state_webhook_url": second.url()}, headers=headers)
            assert (duplicate["job_id"], duplicate["deduplicated"]) == (job_id, True)
        duplicate = api.post(path, body | {"state_webhook_url": first.url()}, headers=headers)
        assert duplicate["deduplicated"] is True
        gate.touch()
        second.wait_for(has_state("done"))
        first.wait_for(has_state("done"))
        assert planned_states(api, job_id, first) == ["queued", "loading", "working", "done"]
        assert planned_states(api, job_id, second) == ["done"]
    assert second.requests[0].body == first.requests[-1].body
    assert second.requests[0].body["previous_state"] == "working"


def planned_states(api: Api, job_id: str, receiver: Receiver) -> list[str]:
    """Return the states that the outbox has for a receiver, sent or not, oldest first."""
    rows = api.workspace.json("webhook", "deliveries", "--job", job_id)["deliveries"]
    return [row["state"] for row in reversed(rows) if f":{receiver.port}/" in row["url"]]


def test_a_duplicate_of_a_job_without_url_is_sent_its_further_states(api: Api, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    body = {"payload": {"gate": str(gate)}, "dedupe_key": "silent", "dedupe_ttl": "1h"}
    job_id = api.post("/plugin/gated/handle", body)["job_id"]
    wait_until_running(api, job_id)
    with a_receiver() as receiver:
        duplicate = api.post("/plugin/gated/handle", body | {"state_webhook_url": receiver.url()})
        assert duplicate["job_id"] == job_id
        gate.touch()
        (request,) = receiver.wait_for(has_state("done"))
    assert (request.body["previous_state"], request.body["result"]) == (None, "opened")


@pytest.mark.parametrize("path", ["/plugin/gated/handle", "/pipeline/gated"])
@pytest.mark.parametrize("has_url", [True, False])
def test_a_duplicate_of_an_ended_job_is_sent_its_end_once(
    api: Api, tmp_path: Path, path: str, has_url: bool
) -> None:
    gate = tmp_path / "open"
    gate.touch()
    body = {"payload": {"gate": str(gate)}, "dedupe_key": f"{path} {has_url}"}
    with a_receiver() as first, a_receiver() as second:
        submission = body | ({"state_webhook_url": first.url()} if has_url else {})
        job_id = api.post(path, submission)["job_id"]
        api.ended(job_id)
        for _ in range(2):
            duplicate = api.post(path, body | {"state_webhook_url": second.url()})
            assert (duplicate["job_id"], duplicate["deduplicated"]) == (job_id, True)
            second.wait_for(has_state("done"))
        assert planned_states(api, job_id, second) == ["done"]
        if has_url:
            first.wait_for(has_state("done"))
            assert second.requests[0].body["timestamp"] == first.requests[-1].body["timestamp"]
    webhook = second.requests[0].body
    assert webhook["job_id"] == job_id
    assert webhook["result"] == ("done" if path.startswith("/pipeline") else "opened")
    assert (webhook["previous_state"], webhook["reason"]) == (None, "completed")


def test_bodies_say_what_ran_and_why(api: Api, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    gate.touch()
    with a_receiver() as job_receiver, a_receiver() as run_receiver, a_receiver() as broken_receiver:
        for path, receiver, state in (
            ("/plugin/gated/handle", job_receiver, "done"),
            ("/pipeline/gated", run_receiver, "done"),
            ("/plugin/broken/handle", broken_receiver, "failed"),
        ):
            api.post(path, {"payload": {"gate": str(gate)}, "state_webhook_url": receiver.url()})
            receiver.wait_for(has_state(state))
    for receiver in (job_receiver, run_receiver, broken_receiver):
        bodies = [request.body for request in receiver.requests]
        assert [list(body)[:9] for body in bodies] == [NINE_KEYS] * len(bodies)
        timestamps = [body["timestamp"] for body in bodies]
        assert timestamps == sorted(set(timestamps))

    def identities(receiver: Receiver) -> list[tuple[Any, ...]]:
        keys = ("plugin", "command", "pipeline", "reason")
        return [tuple(request.body[key] for key in keys) for request in receiver.requests]

    reasons = ("submitted", "claimed", "claimed", "completed")
    assert identities(job_receiver) == [("gated", "handle", None, reason) for reason in reasons]
    assert identities(run_receiver) == [("pipeline", "gated", "gated", reason) for reason in reasons]
    assert identities(broken_receiver)[-1] == ("broken", "handle", None, "plugin_error")


@pytest.mark.parametrize("path", ["/plugin/gated/handle", "/pipeline/gated", "/trigger/gated/handle"])
def test_a_submission_chooses_the_states(api: Api, tmp_path: Path, path: str) -> None:
    gate = tmp_path / "open"
    gate.touch()
    with a_receiver() as receiver:
        body = {"payload": {"gate": str(gate)}, "state_webhook_url": receiver.url()}
        job_id = api.post(path, body | {"state_webhook_events": ["done", "failed"]})["job_id"]
        receiver.wait_for(has_state("done"))
        assert planned_states(api, job_id, receiver) == ["done"]
    assert receiver.requests[0].body["previous_state"] == "working"


def test_the_command_line_chooses_the_states(api: Api, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    gate.touch()
    with a_receiver() as receiver:
        payload = f'{{"gate": "{gate}"}}'
        options = ("--payload", payload, "--state-webhook-url", receiver.url())
        states = ("--state-webhook-events", "done,failed", "--no-wait")
        api.workspace.json("run", "gated", "handle", *options, *states)
        api.workspace.json("pipeline", "run", "gated", *options, *states)
        receiver.wait_for(lambda requests: len(requests) >= 2)
    assert receiver.states() == ["done", "done"]


@pytest.mark.parametrize("states", [["done", "ended"], [], "done", ["done", 1], {"done": True}])
def test_states_that_are_none_are_refused(api: Api, states: object) -> None:
    body = {"state_webhook_url": "http://127.0.0.1/x", "state_webhook_events": states}
    response = api.ask("POST", "/plugin/echo/handle", body)
    assert (response.status, response.code) == (422, "refused")
    text = f"{response.body['message']} {response.body['error']['hint']}"
    assert "queued, loading, working, done, failed" in text
    assert response.body["error"]["details"]["field"] == "state_webhook_events"


def test_states_without_a_url_are_refused(api: Api) -> None:
    response = api.ask("POST", "/plugin/echo/handle", {"state_webhook_events": ["done"]})
    assert (response.status, response.code) == (422, "refused")
    assert "state_webhook_url" in response.body["message"]


def test_a_receiver_that_is_gone_is_not_sent_it_again(api: Api) -> None:
    with a_receiver(lambda *_: Reply(status=410)) as receiver:
        body = {"state_webhook_url": receiver.url(), "state_webhook_events": ["done"]}
        job_id = api.post("/plugin/echo/handle", body)["job_id"]
        gone = api.daemon.wait_for("delivery.gone", lambda line: line["job_id"] == job_id)
        (row,) = api.workspace.json("webhook", "deliveries", "--status", "gone", "--job", job_id)[
            "deliveries"
        ]
    assert (row["id"], row["status"], row["attempts"], row["last_status"]) == (
        gone["delivery"],
        "gone",
        1,
        410,
    )
    assert receiver.states() == ["done"]
