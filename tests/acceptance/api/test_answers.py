"""Every endpoint has its real answers held against the OpenAPI document, strictly."""

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

#: Waits until a file `go` lies beside it: what is running is known to be so.
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
#: One step more than is nested.
STEPS = ", ".join(["{uses: echo}"] * (MAX_DEPTH + 1))
LONG = f"  - {{name: long, execution_mode: synchronous, steps: [{STEPS}]}}\n"


class Asker:
    """Asks, and holds each answer against the document."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.description = Description(api.get("/openapi.json"))
        self.answered: dict[tuple[str, str], set[int]] = {}
        #: Schemas, each with an answer that it describes, as JSON.
        self.held: list[tuple[Any, str]] = []

    def __call__(self, status: int, method: str, path: str, body: object = None, **more: Any) -> Any:
        said = self.api.ask(method, path, body, **more)
        assert said.status == status, (method, path, said)
        self._hold(method, path, said)
        return said.body if "json" in said.headers["content-type"] else said.content

    def _hold(self, method: str, path: str, said: ApiResponse) -> None:
        media_type = said.headers["content-type"].partition(";")[0]
        schema = self.description.schema_of(method, path, said.status, media_type)
        if media_type == "application/json":
            assert_matches(self.description.document["components"], schema, said.body)
            self.held.append((schema, said.content.decode()))
        template = next(
            endpoint.http.path
            for endpoint in sorted(ENDPOINTS, key=lambda each: each.http.path.count("{"))
            if endpoint.http.method == method and _fits(endpoint.http.path, path.partition("?")[0])
        )
        self.answered.setdefault((method, template), set()).add(said.status)


def _fits(template: str, path: str) -> bool:
    wanted, given = template.split("/"), path.split("/")
    return len(wanted) == len(given) and all(
        each.startswith("{") or each == part for each, part in zip(wanted, given, strict=True)
    )


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    directory = tmp_path_factory.mktemp("api")
    (directory / "thing.txt").write_text("a thing")
    more = f"{MORE}{LONG}artifacts: {{roots: [{json.dumps(str(directory))}]}}\n"
    workspace = an_api_workspace(directory, PLUGINS, more=more)
    made = {
        "status": "ok",
        "result": {"n": 2**60},
        "events": [{"type": "thing.made", "payload": {"name": "x"}}],
        "state_updates": {"seen": 1},
        "logs": [{"level": "info", "message": "made"}],
        "artifacts": [{"name": "thing", "path": str(directory / "thing.txt"), "size": 7}],
        "something": "else",
    }
    (workspace.plugin("maker", answering(made)) / "manifest.yaml").write_text(MAKER)
    workspace.plugin("broken", BROKEN)
    workspace.plugin("gated", GATED)
    workspace.plugin("unused", BROKEN)
    with an_api(workspace) as api:
        asker = Asker(api)
        ask_for_runs(asker)
        ask_with_dry_runs(asker)
        ask_about_jobs(asker)
        ask_about_many(asker)
        ask_about_deliveries(asker)
        ask_to_operate(asker)
        ask_about_the_rest(asker, workspace.directory)
        yield asker


def ask_for_runs(ask: Asker) -> None:
    """Good ones, bad ones, half good ones, and those that take too long."""
    key = {"Idempotency-Key": "once"}
    assert (
        ask(202, "POST", "/plugin/maker/handle", {"payload": {"name": "a"}}, headers=key)["status"]
        == "queued"
    )
    again = ask(202, "POST", "/plugin/maker/handle", {"payload": {"name": "a"}}, headers=key)
    assert again["deduplicated"] is True
    done = ask(200, "POST", "/pipeline/soon")
    assert [step["step_id"] for step in done["tree"]] == ["1", "3"]
    assert done["result"]["result"] == "done"
    assert done["children"][0]["output_files"][0]["name"] == "thing"
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
    assert [each["target"] for each in published["started"]] == ["pipeline:later"]
    assert [each["target"] for each in published["dropped"]] == ["never"]
    for _ in range(2):
        published = ask(
            202, "POST", "/event", {"type": "go.now", "payload": {}}, headers={"Idempotency-Key": "e"}
        )
    assert published["deduplicated"]
    ask(404, "POST", "/pipeline/nobody")
    ask(422, "POST", "/plugin/resting/poll")
    said = ask.api.ask("DELETE", "/pipeline/soon")  # described with the methods that the path has
    ask.description.schema_of("POST", "/pipeline/soon", said.status, "application/json")
    assert (said.status, said.headers["allow"]) == (405, "GET, HEAD, POST")
    ask(400, "POST", "/event", b"{")


def ask_about_jobs(ask: Asker) -> None:
    """Queued, running, waiting, failed, dead; runs and their steps."""
    api = ask.api
    good = api.post("/plugin/maker/handle", {"payload": {"name": "b"}})["job_id"]
    bad = api.post("/plugin/broken/poll")["job_id"]
    waiting = api.post("/plugin/patient/poll")["job_id"]
    running = api.post("/plugin/gated/poll")["job_id"]
    run = api.post("/pipeline/both", status=200)["job_id"]
    bypassed = api.post("/pipeline/soon", status=200)["job_id"]
    for ended in (good, bad):
        api.ended(ended)
    api.daemon.wait_until_started(running)
    api.daemon.wait_for("job.retrying", lambda line: line["job_id"] == waiting)
    for job_id in (good, bad, waiting, running, run, bypassed):
        ask(200, "GET", f"/job/{job_id}")
        ask(200, "GET", f"/jobs/{job_id}")
        for part in ("tree", "log", "explain", "export"):
            ask(200, "GET", f"/job/{job_id}/{part}")
    assert ask(200, "GET", f"/job/{good}?result=only")["result"] is not None
    assert ask(502, "POST", "/pipeline/both?strict=true")["ok"] is False
    assert ask(200, "GET", f"/job/{good}/artifact/thing") == b"a thing"
    ask(404, "GET", f"/job/{good}/artifact/nothing")
    ask(409, "GET", f"/job/{good[:6]}/artifact/thing")
    ask(409, "GET", f"/job/{good[:6]}/tree")
    assert ask(200, "GET", "/jobs?limit=1")["next_cursor"] is not None
    ask(200, "GET", "/jobs")
    ask(200, "GET", "/job-logs")
    assert ask(200, "GET", "/jobs?query=paper")["jobs"]
    with EventReader(api, last_id=0) as reader:
        events = reader.wait_until(lambda events: len(events) > 20)
    for event in events:
        ask.description.assert_shape("LedgerEvent", event["data"])
    ask.answered[("GET", "/events")] = {200}
    assert ask(200, "POST", f"/job/{waiting}/cancel", {"dry_run": True})["cancel"] is None
    assert ask(200, "POST", f"/job/{waiting}/cancel")["cancel"] == "cancelled"
    assert ask(200, "POST", f"/job/{running}/cancel")["cancel"] == "requested"
    ask(409, "POST", f"/job/{good}/cancel")
    assert ask(200, "POST", f"/job/{run}/retry", {"dry_run": True})["status"] == "failed"
    ask(200, "POST", f"/job/{run}/retry")
    ask(409, "POST", f"/job/{good}/retry")
    assert ask(200, "POST", f"/job/{good}/rerun", {"dry_run": True})["rerun_of"] == good
    assert ask(202, "POST", f"/job/{good}/rerun", {"payload": {}})["rerun_of"] == good


def ask_with_dry_runs(ask: Asker) -> None:
    """What would be started, and by whose name."""
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


#: Not as it says, in more than one way.
WRONG_CASE = {"name": "one", "expect": {"status": "not_started", "steps": {"nobody": {}}}}


def ask_about_many(ask: Asker) -> None:
    """Runs and their steps, the log and the ledger as they grow, the queue; many jobs at once."""
    api, dry = ask.api, {"dry_run": True}
    ended = api.post("/pipeline/bad", status=200)["job_id"]
    assert ask(200, "POST", "/pipeline/bad/test", {"run": ended})["passed"]
    assert not ask(200, "POST", "/pipeline/bad/test", {"cases": [WRONG_CASE]})["passed"]
    ask(422, "POST", "/pipeline/bad/test", {"cases": [{}]})
    ask(404, "POST", "/pipeline/nobody/test")
    assert ask(200, "GET", "/pipeline/bad/cases?last=1")["runs"] == [ended]
    ask(404, "GET", "/pipeline/bad/cases?run=ffffffff")
    ask(422, "GET", "/pipeline/bad/cases")
    ask(200, "GET", f"/run/{ended}/explain")
    for path in (f"/run/{ended}/follow", f"/job/{ended}/follow", f"/job/{ended}/wait", "/job-logs/follow"):
        ask(200, "GET", f"{path}?timeout=1ms")
    ask(200, "GET", "/ledger/follow?timeout=1ms&after=0")
    assert ask(200, "GET", "/ledger?limit=5")["events"]
    assert "payload_excerpt" in ask(200, "GET", "/jobs?payload=true")["jobs"][0]
    assert ask(200, "POST", f"/run/{ended}/retry", {"step": "1", **dry})["job_id"] is None
    step = api.get(f"/jobs?run={ended}")["jobs"][-1]["job_id"]
    for job_id, key in ((ended, "pipeline"), (step, "note")):
        assert key in ask(200, "POST", f"/job/{job_id}/rerun", dry)
        assert key in ask(202, "POST", f"/job/{job_id}/rerun")
    again = ask(202, "POST", f"/run/{ended}/retry", {"step": "1"})
    assert again["status"] == "queued"
    api.ended(again["job_id"])
    ask(200, "GET", "/queue")
    ask(200, "GET", "/queue/status")
    failed = {"plugin": "broken", "status": "dead"}
    tried = ask(200, "POST", "/jobs/retry", {**failed, **dry})
    assert tried["jobs"]
    done = ask(200, "POST", "/jobs/retry", {**failed, "limit": 1})
    assert done["changed"] + done["refused"] == 1
    waiting = {"plugin": "patient", "status": "queued"}
    assert ask(200, "POST", "/jobs/cancel", {**waiting, **dry})["jobs"]
    assert ask(200, "POST", "/jobs/cancel", waiting)["changed"] >= 1
    for path in ("/jobs/retry", "/jobs/cancel", "/deliveries/resend"):
        ask(400, "POST", path, {})
        ask(404, "POST", path, {"plugin": "nobody"})
        ask(422, "POST", path, {"plugin": 7})
    assert ask(200, "POST", "/queue/purge", {"all": True, **dry})["purged"] == 0
    ask(200, "POST", "/queue/purge", {"plugin": "patient"})


def ask_about_deliveries(ask: Asker) -> None:
    """Webhooks of both directions: what comes in, and what became of what was sent."""
    with a_receiver() as receiver:
        sent = ask.api.post("/plugin/echo/poll", {"state_webhook_url": receiver.url()})["job_id"]
        receiver.wait_for(lambda _: "done" in receiver.states())
        mine = f"/webhooks/deliveries?job_id={sent}&status=delivered"
        ask.api.daemon.wait_until(lambda: len(ask.api.get(mine)["deliveries"]) == len(receiver.states()))
        delivered = ask(200, "GET", mine)["deliveries"]
        one = f"/webhooks/deliveries/{delivered[0]['id']}/resend"
        assert ask(200, "POST", one, {"dry_run": True})["dry_run"] is True
        ask(200, "POST", one)
        all_of_it = {"job_id": sent, "status": "delivered"}
        assert ask(200, "POST", "/deliveries/resend", {**all_of_it, "dry_run": True})["deliveries"]
        assert ask(200, "POST", "/deliveries/resend", all_of_it)["changed"] >= 1
    ask(404, "POST", "/webhooks/deliveries/none/resend")


def ask_to_operate(ask: Asker) -> None:
    """The catalogue, schedules that are the only ones of their plugin, figures and tokens."""
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
    made = {"name": "robot", "scopes": ["jobs:ro"]}
    for dry in ({"dry_run": True}, {}):
        assert (ask(200, "POST", "/tokens", {**made, **dry})["token"] is None) is bool(dry)
    for action in ("rotate", "revoke"):
        for body in ({"dry_run": True}, {}):
            ask(200, "POST", f"/tokens/robot/{action}", body)


def ask_about_configurations(ask: Asker, config: Path) -> None:
    config.write_text(f"{config.read_text()}# a change\n")
    for path in ("/config/diff", "/config/history", "/config/changes", "/config/value?key=service"):
        ask(200, "GET", path)
    ask(404, "GET", "/config/value?key=servcie")
    ask(200, "POST", "/config/plan", {"set": {"service.name": "other"}})
    for action in ("apply", "rollback"):
        for body in ({"dry_run": True}, {}):
            ask(200, "POST", f"/config/{action}", body)


def ask_about_the_rest(ask: Asker, directory: Path) -> None:
    for path in ("/", "/healthz", "/readyz", "/plugins", "/skills", "/topology", "/openapi.json"):
        ask(200, "GET", path)
    for path in ("/", "/healthz", "/readyz"):  # by way of a proxy, and so perhaps for a stranger
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


def test_every_endpoint_has_answered_in_every_good_way(ask: Asker) -> None:
    """Every endpoint is called here with every good status, so that each response is checked."""
    wanted = {
        (endpoint.http.method, endpoint.http.path): {
            status for status in endpoint.http.statuses if status < 400
        }
        for endpoint in ENDPOINTS
    }
    missing = {call: wanted[call] - ask.answered.get(call, set()) for call in wanted}
    assert {call: statuses for call, statuses in missing.items() if statuses} == {}


def test_every_optional_field_occurs(ask: Asker) -> None:
    """A field that may be missing is not invented: without it, some answer would not be described."""
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
        fewer = {each: about for each, about in shapes[name]["properties"].items() if each != key}
        poorer = {**shapes, name: {**shapes[name], "properties": fewer}}
        if all(matches({"schemas": poorer}, schema, body) for schema, body in ask.held if f'"{key}"' in body):
            invented.append((name, key))
    assert invented == []


def test_a_field_that_is_not_described_is_noticed(ask: Asker) -> None:
    """That the checks above can fail: one field more, or one less, at any depth."""
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
