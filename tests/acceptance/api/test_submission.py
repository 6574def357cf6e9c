"""Options of every submission: keys, schemas, traces, parents."""

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
    with an_api(workspace) as running:
        yield running


def test_an_idempotency_key_starts_one_job(api: Api) -> None:
    """Sent again, while the job is queued, runs, or has succeeded, it names the same job."""
    sent = {"Idempotency-Key": "order-1"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=sent)
    again = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=sent)
    assert (again["job_id"], again["deduplicated"]) == (first["job_id"], True)
    api.ended(first["job_id"])
    late = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=sent)
    assert (late["job_id"], late["status"]) == (first["job_id"], "succeeded")
    assert api.get(f"/job/{first['job_id']}")["dedupe_key"] == "order-1"


def test_an_idempotency_key_means_one_body(api: Api) -> None:
    """With another body it is a mistake, and the first job is named."""
    sent = {"Idempotency-Key": "order-2"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=sent)
    said = api.ask("POST", "/plugin/echo/poll", {"payload": {"n": 2}}, headers=sent)
    assert (said.status, said.code) == (422, "refused")
    assert said.body["error"]["details"]["job_id"] == first["job_id"]
    both = api.ask("POST", "/plugin/echo/poll", {"dedupe_key": "x"}, headers=sent)
    assert both.status == 422


@pytest.mark.parametrize(
    "path", ["/plugin/broken/poll", "/trigger/broken/poll", "/pipeline/doomed", "/event"]
)
def test_an_idempotency_key_after_a_failure(api: Api, path: str) -> None:
    """A failed job is no duplicate, so the call runs again; another body stays 422."""
    sent = {"Idempotency-Key": f"failing {path}"}
    more = {"type": "will.fail"} if path == "/event" else {}

    def ask(payload: dict[str, object]) -> ApiResponse:
        return api.ask("POST", path, {**more, "payload": payload}, headers=sent)

    first = _started(ask({"n": 1}))
    assert api.ended(first)["status"] == "failed"
    said = ask({"n": 2})
    assert (said.status, said.code) == (422, "refused"), said
    assert said.body["error"]["details"]["job_id"] == first
    again = _started(ask({"n": 1}))
    assert again != first
    assert api.ended(again)["status"] == "failed"
    assert ask({"n": True}).status == 422
    assert ask({}).body["error"]["details"]["job_id"] == again


def _started(said: ApiResponse) -> str:
    assert said.status == 202, said
    job_id: str = said.body["started"][0]["job_id"] if "started" in said.body else said.body["job_id"]
    return job_id


def test_an_idempotency_key_whose_window_is_over(api: Api) -> None:
    """After it, the key is free; a window of nothing is one, and not the usual one."""
    sent = {"Idempotency-Key": "short"}
    first = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, headers=sent)["job_id"]
    api.ended(first)
    again = api.post("/plugin/echo/poll", {"payload": {"n": 2}, "dedupe_ttl": 0}, headers=sent)
    assert (again["deduplicated"], again["job_id"] == first) == (False, False)


@pytest.mark.parametrize(
    "path", ["/plugin/echo/poll", "/trigger/echo/poll", "/pipeline/told", "/trigger/echo/handle"]
)
def test_a_duplicate_is_marked_as_one(api: Api, path: str) -> None:
    """The id of the existing job, from every endpoint, and no mention of the queue."""
    sent = {"Idempotency-Key": f"told-once {path}"}
    first = api.post(path, headers=sent)
    assert (first["deduplicated"], first["message"].endswith("on the queue.")) == (False, True)
    api.ended(first["job_id"])
    again = api.post(path, headers=sent)
    assert (again["job_id"], again["deduplicated"]) == (first["job_id"], True)
    assert again["message"] == "This is a duplicate: the job exists already."


def test_keys_are_bounded(api: Api) -> None:
    """A key comes back with every job that is listed, so it is a name and no document."""
    longest = "k" * 1024
    assert api.post("/plugin/echo/poll", {"dedupe_key": f" {longest} "})["deduplicated"] is False
    assert api.post("/plugin/echo/poll", headers={"Idempotency-Key": longest})["deduplicated"] is False
    for path, body, headers, field in (
        ("/plugin/echo/poll", {"dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/pipeline/told", {"dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/event", {"type": "order.paid", "dedupe_key": f"{longest}k"}, {}, "dedupe_key"),
        ("/plugin/echo/poll", {}, {"Idempotency-Key": f"{longest}k"}, "Idempotency-Key"),
    ):
        said = api.ask("POST", path, body, headers=headers)
        assert (said.status, said.code) == (422, "refused"), said
        assert said.body["message"] == f"{field} is longer than 1024 characters"
        assert said.body["error"]["details"]["field"] == field


def test_idempotency_keys_of_two_callers_never_meet(api: Api) -> None:
    """They are kept apart by token, and apart from dedupe keys."""
    sent = {"Idempotency-Key": "shared"}
    ids = {
        api.post("/plugin/echo/poll", headers=sent)["job_id"],
        api.post("/plugin/echo/poll", headers=sent, token=token_for("echo:rw"))["job_id"],
        api.post("/plugin/echo/poll", {"dedupe_key": "shared"})["job_id"],
    }
    assert len(ids) == 3


def test_a_dedupe_key_with_and_without_a_window(api: Api) -> None:
    """A success makes a duplicate; a job under way only where the caller gave a window."""
    first = api.post("/plugin/echo/poll", {"dedupe_key": " k1 ", "dedupe_ttl": "1h"})
    again = api.post("/plugin/echo/poll", {"dedupe_key": "k1", "dedupe_ttl": 3600})
    assert again["job_id"] == first["job_id"]
    api.ended(first["job_id"])
    assert api.post("/plugin/echo/poll", {"dedupe_key": "k1"})["deduplicated"] is True
    api.daemon.wait_for("job.deduplicated", lambda line: line["job_id"] == first["job_id"])


def test_a_payload_is_held_against_its_schema(api: Api) -> None:
    """With validate_input, 422 naming the field and not its value; without, it is let through."""
    for payload, field in (
        ({}, "payload"),
        ({"name": 7}, "payload.name"),
        ({"name": "Ada", "tags": ["a", 1]}, "payload.tags[1]"),
        ({"name": "Ada", "age": "canary"}, "payload"),
    ):
        said = api.ask("POST", "/plugin/strict/greet", {"payload": payload})
        assert (said.status, said.code) == (422, "refused"), payload
        assert said.body["error"]["details"]["faults"][0]["field"] == field
    assert api.ask("POST", "/plugin/strict/greet").status == 422
    assert api.post("/plugin/strict/greet", {"payload": {"name": "Ada"}})["status"] == "queued"
    assert api.post("/plugin/loose/greet", {"payload": {"name": 7}})["status"] == "queued"


def test_the_command_line_is_held_against_it_too(api: Api) -> None:
    """Keys of one source do not collide with those of another."""
    refused = api.workspace.ductile("run", "strict", "greet", "--payload", json.dumps({"name": 7}))
    assert refused.status == 1
    assert "payload.name" in refused.err


def test_a_trace_goes_with_the_job(api: Api) -> None:
    """The caller's trace id, else a new one; a malformed one counts as none."""
    sent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    job_id = api.post("/plugin/echo/poll", headers=sent)["job_id"]
    assert api.get(f"/job/{job_id}")["trace_id"] == TRACE
    for wrong in ("", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff-{TRACE}-00f067aa0ba902b7-01", "x" * 300):
        job_id = api.post("/plugin/echo/poll", headers={"traceparent": wrong})["job_id"]
        made = api.get(f"/job/{job_id}")["trace_id"]
        assert made != TRACE
        assert len(made) == 32


def test_a_call_from_inside_a_job(api: Api) -> None:
    """It inherits the trace and is one hop further; an unknown id is ignored."""
    outer = api.post("/plugin/echo/poll", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})[
        "job_id"
    ]
    inner = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": outer})["job_id"]
    job = api.get(f"/job/{inner}")
    assert (job["hops"], job["trace_id"]) == (1, TRACE)
    for _ in range(19):
        inner = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": inner})["job_id"]
    assert api.get(f"/job/{inner}")["hops"] == 20
    said = api.ask("POST", "/plugin/echo/poll", headers={"X-Ductile-Job": inner})
    assert (said.status, said.code) == (422, "refused")
    lost = api.post("/plugin/echo/poll", headers={"X-Ductile-Job": "nobody"})["job_id"]
    assert api.get(f"/job/{lost}")["hops"] == 0


def test_a_callback_is_kept_with_the_job_and_not_shown(api: Api) -> None:
    """An address of the internet is taken; it may hold a secret, so no answer repeats it."""
    url = "https://hooks.example.org/canary-5d1f"
    job_id = api.post("/plugin/echo/poll", {"state_webhook_url": url})["job_id"]
    assert b"hooks.example.org" not in api.ask("GET", f"/job/{job_id}").content


def test_an_idempotency_key_covers_an_event_with_its_body(api: Api) -> None:
    """The same key with another body is 422, for events too; and true is not 1."""
    sent = {"Idempotency-Key": "paid-1"}
    first = api.post("/event", {"type": "order.paid", "payload": {"n": 1}}, headers=sent)
    again = api.post("/event", {"type": "order.paid", "payload": {"n": 1}}, headers=sent)
    assert [one["job_id"] for one in again["deduplicated"]] == [one["job_id"] for one in first["started"]]
    for payload in ({"n": 2}, {"n": True}):
        said = api.ask("POST", "/event", {"type": "order.paid", "payload": payload}, headers=sent)
        assert (said.status, said.code) == (422, "refused")


#: Emits an event with the key that it is given, and answers with the event that it got.
KEYED = """#!/usr/bin/env python3
import json, sys

request = json.load(sys.stdin)
got = request.get("event") or {}
emit = got["payload"].get("emit")
events = [{"type": "made", "payload": {}, "dedupe_key": emit}] if emit else []
json.dump({"status": "ok", "result": {"key": got.get("dedupe_key")}, "events": events}, sys.stdout)
"""
ROUTE = """\
routes:
  - {from: keyed, event_type: made, to: target}
"""


def test_explicit_keys_are_one_namespace_and_are_shown_as_given(tmp_path: Path) -> None:
    """Of callers, commands, events and routes; plugins, logs, ledger and answers have them as given."""
    workspace = an_api_workspace(tmp_path, "  keyed: {}\n  target: {uses: keyed}\n", more=ROUTE)
    workspace.plugin("keyed", KEYED)
    with an_api(workspace) as api:
        first = api.post("/plugin/target/handle", {"payload": {}, "dedupe_key": "k:1"})["job_id"]
        assert api.ended(first)["result"]["result"]["key"] == "k:1"
        maker = api.post("/plugin/keyed/handle", {"payload": {"emit": "k:1"}})["job_id"]
        api.ended(maker)
        line = api.daemon.wait_for("job.deduplicated")
        assert (line["job_id"], line["dedupe_key"]) == (first, "k:1")
        assert api.get(f"/job/{first}")["dedupe_key"] == "k:1"
        sent = api.post("/plugin/target/handle", {"payload": {}}, headers={"Idempotency-Key": "k:1"})
        assert sent["deduplicated"] is False
        own = api.ended(sent["job_id"])
        assert (own["result"]["result"]["key"], own["dedupe_key"]) == ("k:1", "k:1")
        entries = workspace.json("event", "tail", "--limit", "200")["events"]
        (entry,) = [row for row in entries if row["kind"] == "job.deduplicated"]
        assert entry["data"]["dedupe_key"] == "k:1"
