"""The real responses of every endpoint are checked against the OpenAPI document, strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, answering
from builders.described import Description, assert_matches, matches
from builders.http import Api, ApiResponse, EventReader, an_api, an_api_workspace
from builders.receivers import a_receiver
from ductile.api.endpoints import ENDPOINTS
from ductile.operations.jobs.documents import MAX_DEPTH

#: Runs until a file `go` lies beside it, so that its job is known to be running.
GATED = (
    "#!/bin/sh\ncat >/dev/null\n"
    'until [ -e "$(dirname "$0")/go" ]; do sleep 0.05; done\n'
    'echo \'{"status": "ok", "result": "went"}\'\n'
)
MAKER = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: maker
version: 1.0.0
protocol: 2
entrypoint: run.sh
description: Makes things.
execution_mode: synchronous
commands:
  poll: {type: read}
  handle:
    description: Makes one.
    input_schema: {name: string}
    output_schema: {type: string}
    idempotent: true
    values: {consume: [name], emit: [{event: thing.made, values: [name]}]}
  health: {}
"""
PLUGINS = """\
  maker: {notify_on_complete: true}
  broken: {retry: {max_attempts: 1}, circuit_breaker: {threshold: 1}, schedules: [{id: hourly, every: 1h}]}
  patient: {uses: broken, retry: {backoff_base: 1h}}
  gated: {timeout: 1h}  # also on a busy machine
  resting: {uses: echo, enabled: false}
  ghost: {}
"""
MORE = """\
state_webhooks: {allow: [127.0.0.1]}
routes: [{from: maker, event_type: thing.made, to: echo}]
tokens: [{name: hook, key: a-shared-secret}]
webhooks:
  listen: 127.0.0.1:0
  endpoints:
    - {name: pushed, path: /pushed, event: go.now, secret_ref: hook}
    - {name: echoed, path: /echoed, plugin: echo, secret_ref: hook}
pipelines:
  - {name: later, on: go.now, steps: [{uses: maker}, {uses: echo}]}
  - {name: never, on: go.now, if: {path: payload.go, op: exists}, steps: [{uses: echo}]}
  - name: soon
    execution_mode: synchronous
    steps: [{uses: maker}, {uses: echo, if: {path: payload.no, op: exists}}, {uses: echo}]
  - name: both
    execution_mode: synchronous
    steps: [{split: [{id: good, uses: echo}, {id: bad, uses: broken}]}]
  - {name: bad, execution_mode: synchronous, steps: [{uses: broken}]}
  - {name: wanting, execution_mode: synchronous, steps: [{uses: echo, with: {text: "{payload.name}"}}]}
  - name: slow
    execution_mode: synchronous
    timeout: 3s
    return_on_timeout: partial
    steps: [{uses: echo}, {uses: gated}]
  - {name: patient, steps: [{uses: echo}]}
  - {name: told, on-hook: job.failed, steps: [{uses: echo}]}
"""
#: One step more than a response nests.
STEPS = ", ".join(["{uses: echo}"] * (MAX_DEPTH + 1))
LONG = f"  - {{name: long, execution_mode: synchronous, steps: [{STEPS}]}}\n"


class CheckedApi:
    """A client that checks each response against the OpenAPI document."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.description = Description(api.get("/openapi.json"))
        self.answered: dict[tuple[str, str], set[int]] = {}
        #: Schemas, each with a body that it describes, as JSON.
        self.described_bodies: list[tuple[Any, str]] = []

    def __call__(self, status: int, method: str, path: str, body: object = None, **more: Any) -> Any:
        response = self.api.ask(method, path, body, **more)
        assert response.status == status, (method, path, response)
        self._check(method, path, response)
        return response.body if "json" in response.headers["content-type"] else response.content

    def _check(self, method: str, path: str, response: ApiResponse) -> None:
        media_type = response.headers["content-type"].partition(";")[0]
        schema = self.description.schema_of(method, path, response.status, media_type)
        if media_type == "application/json":
            assert_matches(self.description.document["components"], schema, response.body)
            self.described_bodies.append((schema, response.content.decode()))
        template = next(
            endpoint.http.path
            for endpoint in sorted(ENDPOINTS, key=lambda endpoint: endpoint.http.path.count("{"))
            if endpoint.http.method == method and _fits(endpoint.http.path, path.partition("?")[0])
        )
        self.answered.setdefault((method, template), set()).add(response.status)


def _fits(template: str, path: str) -> bool:
    template_parts, path_parts = template.split("/"), path.split("/")
    return len(template_parts) == len(path_parts) and all(
        template_part.startswith("{") or template_part == part
        for template_part, part in zip(template_parts, path_parts, strict=True)
    )


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedApi]:
    directory = tmp_path_factory.mktemp("api")
    (directory / "thing.txt").write_text("a thing")
    more = f"{MORE}{LONG}artifacts: {{roots: [{json.dumps(str(directory))}]}}\n"
    workspace = an_api_workspace(directory, PLUGINS, more=more)
    answer = {
        "status": "ok",
        "result": {"n": 2**60},
        "events": [{"type": "thing.made", "payload": {"name": "x"}}],
        "state_updates": {"seen": 1},
        "logs": [{"level": "info", "message": "made"}],
        "artifacts": [{"name": "thing", "path": str(directory / "thing.txt"), "size": 7}],
        "something": "else",
    }
    (workspace.plugin("maker", answering(answer)) / "manifest.yaml").write_text(MAKER)
    workspace.plugin("broken", BROKEN)
    workspace.plugin("gated", GATED)
    workspace.plugin("unused", BROKEN)
    with an_api(workspace) as api:
        checked_api = CheckedApi(api)
        ask_for_runs(checked_api)
        ask_with_dry_runs(checked_api)
        ask_about_jobs(checked_api)
        ask_about_many(checked_api)
        ask_about_deliveries(checked_api)
        ask_to_operate(checked_api)
        ask_about_the_rest(checked_api, workspace.directory)
        yield checked_api


def ask_for_runs(ask: CheckedApi) -> None:
    """Start runs that succeed, fail, succeed partly, and take too long."""
    key = {"Idempotency-Key": "once"}
    assert (
        ask(202, "POST", "/plugin/maker/handle", {"payload": {"name": "a"}}, headers=key)["status"]
        == "queued"
    )
    duplicate = ask(202, "POST", "/plugin/maker/handle", {"payload": {"name": "a"}}, headers=key)
    assert duplicate["deduplicated"] is True
    run = ask(200, "POST", "/pipeline/soon")
    assert [step["step_id"] for step in run["tree"]] == ["1", "3"]
    assert run["result"]["result"] == "done"
    assert run["children"][0]["output_files"][0]["name"] == "thing"
    long = ask(200, "POST", "/pipeline/long")
    ask(200, "GET", f"/job/{long['job_id']}/tree")
    assert ask(200, "POST", "/pipeline/both")["status"] == "partial_success"
    assert ask(200, "POST", "/pipeline/bad")["error"] == "1: it is broken"
    assert ask(200, "POST", "/pipeline/wanting", {"payload": {}})["result"] is None
    assert ask(200, "POST", "/trigger/maker/handle")["result"]["something"] == "else"
    slow = ask(202, "POST", "/pipeline/slow")
    assert (slow["timeout_exceeded"], slow["timeout_ms"], slow["status"]) == (True, 3000, "running")
    assert [step["command"] for step in slow["tree"]] == ["handle"]
    for path in ("/pipeline/later", "/pipeline/soon?async=true", "/trigger/maker/poll?async=true"):
        ask(202, "POST", path)
    published = ask(202, "POST", "/event", {"type": "go.now", "payload": {}})
    assert [target["target"] for target in published["started"]] == ["pipeline:later"]
    assert [target["target"] for target in published["dropped"]] == ["never"]
    for _ in range(2):
        published = ask(
            202, "POST", "/event", {"type": "go.now", "payload": {}}, headers={"Idempotency-Key": "e"}
        )
    assert published["deduplicated"]
    ask(404, "POST", "/pipeline/nobody")
    ask(422, "POST", "/plugin/resting/poll")
    response = ask.api.ask("DELETE", "/pipeline/soon")
    ask.description.schema_of("POST", "/pipeline/soon", response.status, "application/json")
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD, POST")
    ask(400, "POST", "/event", b"{")


def ask_about_jobs(ask: CheckedApi) -> None:
    """Read and change jobs that are queued, running, waiting, failed and dead, and runs with their steps."""
    api = ask.api
    succeeded_id = api.post("/plugin/maker/handle", {"payload": {"name": "b"}})["job_id"]
    failed_id = api.post("/plugin/broken/poll")["job_id"]
    waiting_id = api.post("/plugin/patient/poll")["job_id"]
    running_id = api.post("/plugin/gated/poll")["job_id"]
    run_id = api.post("/pipeline/both", status=200)["job_id"]
    bypassed_id = api.post("/pipeline/soon", status=200)["job_id"]
    for job_id in (succeeded_id, failed_id):
        api.ended(job_id)
    api.daemon.wait_until_started(running_id)
    api.daemon.wait_for("job.retrying", lambda line: line["job_id"] == waiting_id)
    for job_id in (succeeded_id, failed_id, waiting_id, running_id, run_id, bypassed_id):
        ask(200, "GET", f"/job/{job_id}")
        ask(200, "GET", f"/jobs/{job_id}")
        for part in ("tree", "log", "explain", "export"):
            ask(200, "GET", f"/job/{job_id}/{part}")
    assert ask(200, "GET", f"/job/{succeeded_id}?result=only")["result"] is not None
    assert ask(502, "POST", "/pipeline/both?strict=true")["ok"] is False
    assert ask(200, "GET", f"/job/{succeeded_id}/artifact/thing") == b"a thing"
    ask(404, "GET", f"/job/{succeeded_id}/artifact/nothing")
    ask(409, "GET", f"/job/{succeeded_id[:6]}/artifact/thing")
    ask(409, "GET", f"/job/{succeeded_id[:6]}/tree")
    assert ask(200, "GET", "/jobs?limit=1")["next_cursor"] is not None
    ask(200, "GET", "/jobs")
    ask(200, "GET", "/job-logs")
    assert ask(200, "GET", "/jobs?query=paper")["jobs"]
    with EventReader(api, last_id=0) as reader:
        events = reader.wait_until(lambda events: len(events) > 20)
    for event in events:
        ask.description.assert_shape("LedgerEvent", event["data"])
    ask.answered[("GET", "/events")] = {200}
    assert ask(200, "POST", f"/job/{waiting_id}/cancel", {"dry_run": True})["cancel"] is None
    assert ask(200, "POST", f"/job/{waiting_id}/cancel")["cancel"] == "cancelled"
    assert ask(200, "POST", f"/job/{running_id}/cancel")["cancel"] == "requested"
    ask(409, "POST", f"/job/{succeeded_id}/cancel")
    assert ask(200, "POST", f"/job/{run_id}/retry", {"dry_run": True})["status"] == "failed"
    ask(200, "POST", f"/job/{run_id}/retry")
    ask(409, "POST", f"/job/{succeeded_id}/retry")
    assert ask(200, "POST", f"/job/{succeeded_id}/rerun", {"dry_run": True})["rerun_of"] == succeeded_id
    assert ask(202, "POST", f"/job/{succeeded_id}/rerun", {"payload": {}})["rerun_of"] == succeeded_id


def ask_with_dry_runs(ask: CheckedApi) -> None:
    """Make every submission a dry run, also under names that a plugin and a pipeline share."""
    dry = {"dry_run": True}
    for path in ("/plugin/maker/handle", "/plugin/maker", "/pipeline/soon", "/trigger/maker/poll"):
        ask(200, "POST", path, dry)
    ask(200, "POST", "/event", {"type": "go.now", "payload": {}, **dry})
    ask(200, "POST", "/event/explain", {"type": "go.now", "payload": {}})
    ask(200, "POST", "/replay/maker", {"include_writes": True})
    ask(202, "POST", "/plugin/maker")
    for name in ("maker", "later"):
        assert "note" not in ask(200, "POST", f"/run/{name}", dry)
        assert "note" not in ask(202, "POST", f"/run/{name}")
    assert ask(200, "POST", "/run/patient", dry)["note"].startswith("patient is also the name of a pipeline")
    assert ask(202, "POST", "/run/patient", {"command": "poll"})["note"]
    ask(400, "POST", "/run/later", {"command": "poll"})
    ask(404, "POST", "/run/nobody")
    ask(422, "POST", "/run/resting")


#: A test case that differs from the run in more than one way.
WRONG_CASE = {"name": "one", "expect": {"status": "not_started", "steps": {"nobody": {}}}}


def ask_about_many(ask: CheckedApi) -> None:
    """Read runs, the growing log and ledger, and the queue; change many jobs at once."""
    api, dry = ask.api, {"dry_run": True}
    run_id = api.post("/pipeline/bad", status=200)["job_id"]
    assert ask(200, "POST", "/pipeline/bad/test", {"run": run_id})["passed"]
    assert not ask(200, "POST", "/pipeline/bad/test", {"cases": [WRONG_CASE]})["passed"]
    ask(422, "POST", "/pipeline/bad/test", {"cases": [{}]})
    ask(404, "POST", "/pipeline/nobody/test")
    assert ask(200, "GET", "/pipeline/bad/cases?last=1")["runs"] == [run_id]
    ask(404, "GET", "/pipeline/bad/cases?run=ffffffff")
    ask(422, "GET", "/pipeline/bad/cases")
    ask(200, "GET", f"/run/{run_id}/explain")
    for path in (f"/run/{run_id}/follow", f"/job/{run_id}/follow", f"/job/{run_id}/wait", "/job-logs/follow"):
        ask(200, "GET", f"{path}?timeout=1ms")
    ask(200, "GET", "/ledger/follow?timeout=1ms&after=0")
    assert ask(200, "GET", "/ledger?limit=5")["events"]
    assert "payload_excerpt" in ask(200, "GET", "/jobs?payload=true")["jobs"][0]
    assert ask(200, "POST", f"/run/{run_id}/retry", {"step": "1", **dry})["job_id"] is None
    step = api.get(f"/jobs?run={run_id}")["jobs"][-1]["job_id"]
    for job_id, key in ((run_id, "pipeline"), (step, "note")):
        assert key in ask(200, "POST", f"/job/{job_id}/rerun", dry)
        assert key in ask(202, "POST", f"/job/{job_id}/rerun")
    retry = ask(202, "POST", f"/run/{run_id}/retry", {"step": "1"})
    assert retry["status"] == "queued"
    api.ended(retry["job_id"])
    ask(200, "GET", "/queue")
    ask(200, "GET", "/queue/status")
    failed = {"plugin": "broken", "status": "dead"}
    preview = ask(200, "POST", "/jobs/retry", {**failed, **dry})
    assert preview["jobs"]
    retried = ask(200, "POST", "/jobs/retry", {**failed, "limit": 1})
    assert retried["changed"] + retried["refused"] == 1
    waiting = {"plugin": "patient", "status": "queued"}
    assert ask(200, "POST", "/jobs/cancel", {**waiting, **dry})["jobs"]
    assert ask(200, "POST", "/jobs/cancel", waiting)["changed"] >= 1
    for path in ("/jobs/retry", "/jobs/cancel", "/deliveries/resend"):
        ask(400, "POST", path, {})
        ask(404, "POST", path, {"plugin": "nobody"})
        ask(422, "POST", path, {"plugin": 7})
    assert ask(200, "POST", "/queue/purge", {"all": True, **dry})["purged"] == 0
    ask(200, "POST", "/queue/purge", {"plugin": "patient"})


def ask_about_deliveries(ask: CheckedApi) -> None:
    """Read the deliveries of state webhooks, and send them again."""
    with a_receiver() as receiver:
        job_id = ask.api.post("/plugin/echo/poll", {"state_webhook_url": receiver.url()})["job_id"]
        receiver.wait_for(lambda _: "done" in receiver.states())
        path = f"/webhooks/deliveries?job_id={job_id}&status=delivered"
        ask.api.daemon.wait_until(lambda: len(ask.api.get(path)["deliveries"]) == len(receiver.states()))
        deliveries = ask(200, "GET", path)["deliveries"]
        resend_path = f"/webhooks/deliveries/{deliveries[0]['id']}/resend"
        assert ask(200, "POST", resend_path, {"dry_run": True})["dry_run"] is True
        ask(200, "POST", resend_path)
        query = {"job_id": job_id, "status": "delivered"}
        assert ask(200, "POST", "/deliveries/resend", {**query, "dry_run": True})["deliveries"]
        assert ask(200, "POST", "/deliveries/resend", query)["changed"] >= 1
    ask(404, "POST", "/webhooks/deliveries/none/resend")


def ask_to_operate(ask: CheckedApi) -> None:
    """Read and change pipelines, plugins, schedules, figures and tokens."""
    for path in (
        "/pipelines",
        "/pipeline/soon",
        "/pipeline/soon/graph",
        "/plugin/maker/state",
        "/plugin/maker/facts",
        "/plugin/maker/pending",
        "/plugins/unhealthy",
        "/schedules/next",
        "/schedule/broken/history",
        "/schedule/broken/explain",
        "/schedule/broken/hourly/history",
        "/schedule/broken/hourly/explain",
        "/analytics/plugins?since=1h",
        "/system/status",
        "/system/digest?since=1h",
        "/system/breaker/broken",
        "/tokens",
        "/tokens/hook",
        "/tokens/jobs:ro",
    ):
        ask(200, "GET", path)
    ask(404, "GET", "/analytics/plugins?plugin=nobody")
    ask(200, "POST", "/system/health", {"plugin": "maker"})
    for action in ("pause", "resume"):
        ask(200, "POST", f"/schedule/broken/{action}")
    assert ask(200, "POST", "/schedule/broken/run", {"dry_run": True})["job_id"] is None
    ask.api.ended(ask(202, "POST", "/schedule/broken/run")["job_id"])
    new_token = {"name": "robot", "scopes": ["jobs:ro"]}
    for dry in ({"dry_run": True}, {}):
        assert (ask(200, "POST", "/tokens", {**new_token, **dry})["token"] is None) is bool(dry)
    for action in ("rotate", "revoke"):
        for body in ({"dry_run": True}, {}):
            ask(200, "POST", f"/tokens/robot/{action}", body)


def ask_about_configurations(ask: CheckedApi, config: Path) -> None:
    config.write_text(f"{config.read_text()}# a change\n")
    for path in ("/config/diff", "/config/history", "/config/changes", "/config/value?key=service"):
        ask(200, "GET", path)
    ask(404, "GET", "/config/value?key=servcie")
    ask(200, "POST", "/config/plan", {"set": {"service.name": "other"}})
    for action in ("apply", "rollback"):
        for body in ({"dry_run": True}, {}):
            ask(200, "POST", f"/config/{action}", body)


def ask_about_the_rest(ask: CheckedApi, directory: Path) -> None:
    for path in ("/", "/healthz", "/readyz", "/plugins", "/skills", "/topology", "/openapi.json"):
        ask(200, "GET", path)
    for path in ("/", "/healthz", "/readyz"):  # a proxy may pass on requests of anyone
        ask(200, "GET", path, headers={"X-Forwarded-For": "192.0.2.7"})
    for path in ("/plugin/maker/openapi.json", "/metrics"):
        ask(200, "GET", path)
    assert ask(200, "GET", "/skills?format=markdown").startswith(b"---\n")
    for plugin in ("maker", "broken", "resting", "ghost"):
        ask(200, "GET", f"/plugin/{plugin}")
    ask(404, "GET", "/plugin/nobody")
    for path in ("/analytics/queue", "/analytics/summary?span=1h", "/config/view", "/system/doctor"):
        ask(200, "GET", path)
    for path in ("/analytics/series", "/tools"):
        ask(200, "GET", path)
    ask(200, "POST", "/tools/job_list", {})
    ask(200, "POST", "/tools/run__echo__handle", {"as_task": True})
    gated = {"arguments": {"wait": "10m"}, "progress_after": 0}
    assert ask(200, "POST", "/tools/run__gated__poll", gated)["progress"]
    ask(404, "POST", "/tools/nothing", {})
    ask(200, "GET", "/system/selfcheck")
    ask.api.daemon.wait_for("breaker.changed")  # by the first run of the schedule, which fails
    assert ask(200, "POST", "/system/breaker/broken/reset", {"dry_run": True})["would_reset"] == ["poll"]
    assert ask(200, "POST", "/system/breaker/broken/reset")["reset"] == 1
    assert ask(200, "POST", "/schedule/broken/hourly/run", {"dry_run": True})["job_id"] is None
    ask(202, "POST", "/schedule/broken/hourly/run")
    assert ask(200, "POST", "/schedule/broken/hourly/pause", {"dry_run": True})["would_be_paused"] is True
    for action in ("pause", "resume"):
        ask(200, "POST", f"/schedule/broken/hourly/{action}")
        ask(200, "GET", "/schedules")
    ask(404, "POST", "/schedule/broken/nothing/run")
    ask(200, "POST", "/system/sweep", {"dry_run": True})
    ask(200, "POST", "/system/sweep")
    ask(200, "POST", "/system/reload", {"dry_run": True})
    ask(200, "POST", "/system/reload")
    assert ask(200, "GET", "/webhooks")["on_disk"] is None
    config = directory / "demo" / "config.yaml"
    ask_about_configurations(ask, config)
    config.write_text(config.read_text().replace("name: pushed", "name: pushed-too"))
    assert ask.api.workspace.ductile("config", "lock").status == 0
    differs = ask(200, "GET", "/webhooks")["on_disk"]
    assert (differs["added"], differs["removed"], differs["error"]) == (["pushed-too"], ["pushed"], None)
    config.write_text("nonsense: 1\n")
    assert ask(200, "GET", "/webhooks")["on_disk"]["error"]
    ask(422, "POST", "/system/reload")
    ask(401, "GET", "/jobs", token=None)
    ask(403, "GET", "/config/view", token="canary-5d1f-jobs:ro")


def test_every_endpoint_has_answered_in_every_good_way(ask: CheckedApi) -> None:
    """Every endpoint is called here with every good status, so that each response is checked."""
    expected = {
        (endpoint.http.method, endpoint.http.path): {
            status for status in endpoint.http.statuses if status < 400
        }
        for endpoint in ENDPOINTS
    }
    missing = {call: expected[call] - ask.answered.get(call, set()) for call in expected}
    assert {call: statuses for call, statuses in missing.items() if statuses} == {}


def test_every_optional_field_occurs(ask: CheckedApi) -> None:
    """Every field that may be missing is in some response, which its schema would not describe without it."""
    shapes = ask.description.document["components"]["schemas"]
    optional = [
        (name, key)
        for name, shape in shapes.items()
        for key in shape.get("properties", {})
        if key not in shape["required"]
    ]
    assert ("Finished", "error") in optional
    invented = []
    for name, key in optional:
        remaining = {
            field: field_schema for field, field_schema in shapes[name]["properties"].items() if field != key
        }
        reduced = {**shapes, name: {**shapes[name], "properties": remaining}}
        if all(
            matches({"schemas": reduced}, schema, body)
            for schema, body in ask.described_bodies
            if f'"{key}"' in body
        ):
            invented.append((name, key))
    assert invented == []


def test_a_field_that_is_not_described_is_noticed(ask: CheckedApi) -> None:
    """The checks above can fail: for one field more, or one less, at any depth."""
    job = ask.api.get(f"/job/{ask.api.get('/jobs?plugin=maker')['jobs'][0]['job_id']}")
    ask.description.assert_shape("FullJob", job)
    for broken in (
        {**job, "surprise": 1},
        {key: value for key, value in job.items() if key != "hops"},
        {**job, "transitions": [{**job["transitions"][0], "surprise": 1}]},
        {**job, "created_at": "yesterday"},
    ):
        with pytest.raises(ValueError, match=r"surprise|hops|yesterday"):
            ask.description.assert_shape("FullJob", broken)
