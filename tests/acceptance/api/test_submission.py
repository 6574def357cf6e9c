"""Options of every submission: dedupe keys, input schemas, traces, parent jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import answering
from builders.http import Api, ApiResponse, an_api, an_api_workspace, token_for
from builders.postgres import STORES, keep_in

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
STRICT = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: strict
version: 1.0.0
protocol: 2
entrypoint: run.sh
commands:
  greet:
    type: write
    input_schema:
      type: object
      required: [name]
      additionalProperties: false
      properties:
        name: {type: string, minLength: 1}
        tags: {type: array, items: {type: string}}
  handle: {}
"""
PIPELINES = """\
pipelines:
  - {name: told, on: order.paid, steps: [{uses: echo}]}
  - {name: handled, on: echo.handle, steps: [{uses: echo}]}
  - {name: doomed, on: will.fail, steps: [{uses: broken}]}
"""


@pytest.fixture(scope="module", params=STORES)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    plugins = "  strict: {validate_input: true}\n  loose: {uses: strict}\n  broken: {}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), plugins, more=PIPELINES)
    plugin = workspace.plugin(
        "strict", '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "hi"}\'\n'
    )
    (plugin / "manifest.yaml").write_text(STRICT)
    workspace.plugin("broken", answering({"status": "error", "error": "no", "retry": False}))
    keep_in(request.param, workspace.config)
    with an_api(workspace) as api:
        yield api


def test_an_idempotency_key_starts_one_job(api: Api) -> None:
    """A repeated request names the same job, which may be queued, running or succeeded."""
    headers = {"Idempotency-Key": "order-1"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=headers)
    repeated = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=headers)
    assert (repeated["job_id"], repeated["deduplicated"]) == (first["job_id"], True)
    api.ended(first["job_id"])
    later = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=headers)
    assert (later["job_id"], later["status"]) == (first["job_id"], "succeeded")
    assert api.get(f"/job/{first['job_id']}")["dedupe_key"] == "order-1"


def test_an_idempotency_key_means_one_body(api: Api) -> None:
    """The same key with another body is refused, and the error names the first job."""
    headers = {"Idempotency-Key": "order-2"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=headers)
    response = api.ask("POST", "/plugin/echo/poll", {"payload": {"n": 2}}, headers=headers)
    assert (response.status, response.code) == (422, "refused")
    assert response.body["error"]["details"]["job_id"] == first["job_id"]
    response_to_both = api.ask("POST", "/plugin/echo/poll", {"dedupe_key": "x"}, headers=headers)
    assert response_to_both.status == 422


@pytest.mark.parametrize(
    "path", ["/plugin/broken/poll", "/trigger/broken/poll", "/pipeline/doomed", "/event"]
)
def test_an_idempotency_key_after_a_failure(api: Api, path: str) -> None:
    """A failed job is no duplicate, so the request starts a new one; another body stays 422."""
    headers = {"Idempotency-Key": f"failing {path}"}
    fields = {"type": "will.fail"} if path == "/event" else {}

    def ask(payload: dict[str, object]) -> ApiResponse:
        return api.ask("POST", path, {**fields, "payload": payload}, headers=headers)

    first_id = started_job(ask({"n": 1}))
    assert api.ended(first_id)["status"] == "failed"
    response = ask({"n": 2})
    assert (response.status, response.code) == (422, "refused"), response
    assert response.body["error"]["details"]["job_id"] == first_id
    second = started_job(ask({"n": 1}))
    assert second != first_id
    assert api.ended(second)["status"] == "failed"
    assert ask({"n": True}).status == 422
    assert ask({}).body["error"]["details"]["job_id"] == second


def started_job(response: ApiResponse) -> str:
    assert response.status == 202, response
    job_id: str = (
        response.body["started"][0]["job_id"] if "started" in response.body else response.body["job_id"]
    )
    return job_id


def test_an_idempotency_key_whose_window_is_over(api: Api) -> None:
    """After the window the key is free; a window of 0 does not mean the default."""
    headers = {"Idempotency-Key": "short"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=headers)["job_id"]
    api.ended(first)
    repeated = api.post("/plugin/echo/poll", {"payload": {"n": 2}, "dedupe_ttl": 0}, headers=headers)
    assert (repeated["deduplicated"], repeated["job_id"] == first) == (False, False)


@pytest.mark.parametrize(
    "path", ["/plugin/echo/poll", "/trigger/echo/poll", "/pipeline/told", "/trigger/echo/handle"]
)
def test_a_duplicate_is_marked_as_one(api: Api, path: str) -> None:
    """Every endpoint responds with the id of the existing job, and does not mention the queue."""
    headers = {"Idempotency-Key": f"told-once {path}"}
    first = api.post(path, headers=headers)
    assert (first["deduplicated"], first["message"].endswith("on the queue.")) == (False, True)
    api.ended(first["job_id"])
    repeated = api.post(path, headers=headers)
    assert (repeated["job_id"], repeated["deduplicated"]) == (first["job_id"], True)
    assert repeated["message"] == "This is a duplicate: the job exists already."


def test_keys_are_bounded(api: Api) -> None:
    """A key is in every list of jobs, so it is a name and no document."""
    longest = "k" * 1024
    assert api.post("/plugin/echo/poll", {"dedupe_key": f" {longest} "})["deduplicated"] is False
    assert api.post("/plugin/echo/poll", headers={"Idempotency-Key": longest})["deduplicated"] is False
    for path, body, headers, field in (
        ("/plugin/echo/poll", {"dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/pipeline/told", {"dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/event", {"type": "order.paid", "dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/plugin/echo/poll", {}, {"Idempotency-Key": f"{longest}k"}, "Idempotency-Key"),
    ):
        response = api.ask("POST", path, body, headers=headers)
        assert (response.status, response.code) == (422, "refused"), response
        assert response.body["message"] == f"{field} is longer than 1024 characters"
        assert response.body["error"]["details"]["field"] == field


def test_idempotency_keys_of_two_callers_never_meet(api: Api) -> None:
    """Idempotency keys are kept apart by token, and apart from dedupe keys."""
    headers = {"Idempotency-Key": "shared"}
    ids = {
        api.post("/plugin/echo/poll", headers=headers)["job_id"],
        api.post("/plugin/echo/poll", headers=headers, token=token_for("echo:rw"))["job_id"],
        api.post("/plugin/echo/poll", {"dedupe_key": "shared"})["job_id"],
    }
    assert len(ids) == 3


def test_a_dedupe_key_with_and_without_a_window(api: Api) -> None:
    """A succeeded job makes a duplicate; an unended one only where the caller gave a window."""
    first = api.post("/plugin/echo/poll", {"dedupe_key": " k1 ", "dedupe_ttl": "1h"})
    repeated = api.post("/plugin/echo/poll", {"dedupe_key": "k1", "dedupe_ttl": 3600})
    assert repeated["job_id"] == first["job_id"]
    api.ended(first["job_id"])
    assert api.post("/plugin/echo/poll", {"dedupe_key": "k1"})["deduplicated"] is True
    api.daemon.wait_for("job.deduplicated", lambda line: line["job_id"] == first["job_id"])


def test_a_payload_is_checked_against_its_schema(api: Api) -> None:
    """With `validate_input` the response is 422 and names the field, not its value."""
    for payload, field in (
        ({}, "payload"),
        ({"name": 7}, "payload.name"),
        ({"name": "Ada", "tags": ["a", 1]}, "payload.tags[1]"),
        ({"name": "Ada", "age": "canary"}, "payload"),
    ):
        response = api.ask("POST", "/plugin/strict/greet", {"payload": payload})
        assert (response.status, response.code) == (422, "refused"), payload
        assert response.body["error"]["details"]["faults"][0]["field"] == field
    assert api.ask("POST", "/plugin/strict/greet").status == 422
    assert api.post("/plugin/strict/greet", {"payload": {"name": "Ada"}})["status"] == "queued"
    assert api.post("/plugin/loose/greet", {"payload": {"name": 7}})["status"] == "queued"


def test_a_payload_of_the_command_line_is_checked_too(api: Api) -> None:
    result = api.workspace.ductile("run", "strict", "greet", "--payload", json.dumps({"name": 7}))
    assert result.status == 1
    assert "payload.name" in result.err


def test_a_trace_goes_with_the_job(api: Api) -> None:
    """A job has the trace id of its caller, or a new one; a malformed one counts as none."""
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    job_id = api.post("/plugin/echo/poll", headers=headers)["job_id"]
    assert api.get(f"/job/{job_id}")["trace_id"] == TRACE
    for traceparent in (
        "",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        "x" * 300,
    ):
        job_id = api.post("/plugin/echo/poll", headers={"traceparent": traceparent})["job_id"]
        trace_id = api.get(f"/job/{job_id}")["trace_id"]
        assert trace_id != TRACE
        assert len(trace_id) == 32


def test_a_call_from_inside_a_job(api: Api) -> None:
    """The new job inherits the trace and has one hop more; an unknown parent is ignored."""
    outer = api.post("/plugin/echo/poll", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})[
        "job_id"
    ]
    inner = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": outer})["job_id"]
    job = api.get(f"/job/{inner}")
    assert (job["hops"], job["trace_id"]) == (1, TRACE)
    for _ in range(19):
        inner = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": inner})["job_id"]
    assert api.get(f"/job/{inner}")["hops"] == 20
    response = api.ask("POST", "/plugin/echo/poll", headers={"X-Ductile-Job": inner})
    assert (response.status, response.code) == (422, "refused")
    without_parent = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": "nobody"})["job_id"]
    assert api.get(f"/job/{without_parent}")["hops"] == 0


def test_a_callback_is_kept_with_the_job_and_not_shown(api: Api) -> None:
    """The URL of a state webhook may hold a secret, so no response repeats it."""
    url = "https://hooks.example.org/canary-5d1f"
    job_id = api.post("/plugin/echo/poll", {"state_webhook_url": url})["job_id"]
    assert b"hooks.example.org" not in api.ask("GET", f"/job/{job_id}").content


def test_an_idempotency_key_covers_an_event_with_its_body(api: Api) -> None:
    """The same key with another body is answered 422, for events too; `true` is not 1."""
    headers = {"Idempotency-Key": "paid-1"}
    first = api.post("/event", {"type": "order.paid", "payload": {"n": 1}}, headers=headers)
    repeated = api.post("/event", {"type": "order.paid", "payload": {"n": 1}}, headers=headers)
    assert [job["job_id"] for job in repeated["deduplicated"]] == [job["job_id"] for job in first["started"]]
    for payload in ({"n": 2}, {"n": True}):
        response = api.ask("POST", "/event", {"type": "order.paid", "payload": payload}, headers=headers)
        assert (response.status, response.code) == (422, "refused")


#: Emits an event with the key of its payload, and responds with the dedupe key of its own event.
KEYED = """#!/usr/bin/env python3
import json, sys

request = json.load(sys.stdin)
event = request.get("event") or {}
emit = event["payload"].get("emit")
events = [{"type": "made", "payload": {}, "dedupe_key": emit}] if emit else []
json.dump({"status": "ok", "result": {"key": event.get("dedupe_key")}, "events": events}, sys.stdout)
"""
ROUTE = """\
routes:
  - {from: keyed, event_type: made, to: target}
"""


def test_explicit_keys_are_one_namespace_and_are_shown_as_given(tmp_path: Path) -> None:
    """Plugins, logs and ledger have the keys of callers, commands, events and routes as given."""
    workspace = an_api_workspace(tmp_path, "  keyed: {}\n  target: {uses: keyed}\n", more=ROUTE)
    workspace.plugin("keyed", KEYED)
    with an_api(workspace) as api:
        first_id = api.post("/plugin/target/handle", {"payload": {}, "dedupe_key": "k:1"})["job_id"]
        assert api.ended(first_id)["result"]["result"]["key"] == "k:1"
        producer_id = api.post("/plugin/keyed/handle", {"payload": {"emit": "k:1"}})["job_id"]
        api.ended(producer_id)
        line = api.daemon.wait_for("job.deduplicated")
        assert (line["job_id"], line["dedupe_key"]) == (first_id, "k:1")
        assert api.get(f"/job/{first_id}")["dedupe_key"] == "k:1"
        submitted = api.post("/plugin/target/handle", {"payload": {}}, headers={"Idempotency-Key": "k:1"})
        assert submitted["deduplicated"] is False
        own_job = api.ended(submitted["job_id"])
        assert (own_job["result"]["result"]["key"], own_job["dedupe_key"]) == ("k:1", "k:1")
        entries = workspace.json("event", "tail", "--limit", "200")["events"]
        (entry,) = [row for row in entries if row["kind"] == "job.deduplicated"]
        assert entry["data"]["dedupe_key"] == "k:1"
