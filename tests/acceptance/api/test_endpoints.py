"""Every endpoint with the right token, with each wrong one and with none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders.daemons import BROKEN, answering
from builders.http import SCOPES, Api, an_api, an_api_workspace, token_for
from ductile.api.endpoints import ENDPOINTS

READER = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "read"}\'\n'
PIPELINES = """\
pipelines:
  - {name: chain, on: echo.handle, steps: [{uses: echo}]}
  - {name: choosy, on: only.some, if: {path: payload.ok, op: exists}, steps: [{uses: echo}]}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request, and the scopes that allow it. `*` always does."""

    method: str
    path: str
    scopes: tuple[str, ...]
    template: str
    status: int = 200
    body: object = None


READS_JOBS = ("jobs:ro", "jobs:rw", "read:jobs")
READS_PLUGINS = ("plugin:ro", "plugin:rw")
#: A command that only reads needs the right to read its plugin.
READS_READER = (*READS_PLUGINS, "reader:ro", "reader:rw")
EVERY_SCOPE = (*SCOPES, "reader:ro", "reader:rw")
MISSING = "01a1e212-0000-7000-8000-000000000000"
CASES = (
    Case(
        method="POST",
        path="/plugin/echo/poll",
        scopes=("plugin:rw", "echo:rw"),
        template="/plugin/{plugin}/{command}",
        status=202,
    ),
    Case(
        method="POST",
        path="/plugin/reader/look",
        scopes=READS_READER,
        template="/plugin/{plugin}/{command}",
        status=202,
    ),
    Case(
        method="POST",
        path="/plugin/nobody/poll",
        scopes=READS_PLUGINS,
        template="/plugin/{plugin}/{command}",
        status=404,
    ),
    Case(
        method="POST",
        path="/pipeline/chain",
        scopes=("plugin:rw",),
        template="/pipeline/{pipeline}",
        status=202,
    ),
    Case(
        method="POST",
        path="/trigger/echo/handle",
        scopes=("plugin:rw",),
        template="/trigger/{plugin}/{command}",
        status=202,
    ),
    Case(
        method="POST",
        path="/trigger/echo/poll",  # no pipeline has this trigger
        scopes=("plugin:rw", "echo:rw"),
        template="/trigger/{plugin}/{command}",
        status=202,
    ),
    Case(
        method="POST",
        path="/trigger/reader/look",
        scopes=READS_READER,
        template="/trigger/{plugin}/{command}",
        status=202,
    ),
    Case(
        method="POST",
        path="/event",
        scopes=("events:rw",),
        template="/event",
        status=202,
        body={"type": "a.b", "payload": {}},
    ),
    Case(
        method="POST",
        path="/replay/absent",
        scopes=("system:rw",),
        template="/replay/{plugin}",
        status=404,
    ),
    Case(
        method="POST",
        path="/pipeline/absent/test",
        scopes=("system:ro", "system:rw"),
        template="/pipeline/{pipeline}/test",
        status=404,
    ),
    Case(
        method="GET",
        path="/pipeline/absent/cases?last=1",
        scopes=READS_JOBS,
        template="/pipeline/{pipeline}/cases",
        status=404,
    ),
    Case(
        method="POST",
        path="/event/explain",
        scopes=("events:ro", "events:rw", "read:events"),
        template="/event/explain",
        body={"type": "a.b", "payload": {}},
    ),
    Case(method="GET", path=f"/job/{MISSING}", scopes=READS_JOBS, template="/job/{job_id}", status=404),
    Case(method="GET", path=f"/jobs/{MISSING}", scopes=READS_JOBS, template="/jobs/{job_id}", status=404),
    Case(
        method="GET",
        path=f"/job/{MISSING}/export",
        scopes=READS_JOBS,
        template="/job/{job_id}/export",
        status=404,
    ),
    Case(
        method="POST",
        path=f"/job/{MISSING}/rerun",
        scopes=("jobs:rw",),
        template="/job/{job_id}/rerun",
        status=404,
    ),
    Case(
        method="GET",
        path=f"/job/{MISSING}/tree",
        scopes=READS_JOBS,
        template="/job/{job_id}/tree",
        status=404,
    ),
    Case(
        method="GET",
        path=f"/job/{MISSING}/explain",
        scopes=READS_JOBS,
        template="/job/{job_id}/explain",
        status=404,
    ),
    Case(
        method="GET", path=f"/job/{MISSING}/log", scopes=READS_JOBS, template="/job/{job_id}/log", status=404
    ),
    Case(
        method="GET",
        path=f"/job/{MISSING}/artifact/x",
        scopes=READS_JOBS,
        template="/job/{job_id}/artifact/{name}",
        status=404,
    ),
    Case(
        method="POST",
        path=f"/job/{MISSING}/cancel",
        scopes=("jobs:rw",),
        template="/job/{job_id}/cancel",
        status=404,
    ),
    Case(
        method="POST",
        path=f"/job/{MISSING}/retry",
        scopes=("jobs:rw",),
        template="/job/{job_id}/retry",
        status=404,
    ),
    Case(method="GET", path="/jobs", scopes=READS_JOBS, template="/jobs"),
    Case(method="GET", path="/job-logs", scopes=READS_JOBS, template="/job-logs"),
    Case(
        method="GET",
        path="/events?after=x",
        scopes=("events:ro", "events:rw", "read:events"),
        template="/events",
        status=400,
    ),
    Case(
        method="GET",
        path="/plugin/echo",
        scopes=(*READS_PLUGINS, "echo:ro", "echo:rw"),
        template="/plugin/{plugin}",
    ),
    Case(method="GET", path="/plugin/reader", scopes=READS_READER, template="/plugin/{plugin}"),
    Case(method="GET", path="/plugin/nobody", scopes=READS_PLUGINS, template="/plugin/{plugin}", status=404),
    Case(method="GET", path="/topology", scopes=READS_PLUGINS, template="/topology"),
    Case(method="GET", path="/schedules", scopes=READS_JOBS, template="/schedules"),
    Case(
        method="POST",
        path="/schedule/echo/hourly/pause",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/{schedule}/pause",
    ),
    Case(
        method="POST",
        path="/schedule/echo/hourly/resume",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/{schedule}/resume",
    ),
    Case(
        method="POST",
        path="/schedule/echo/daily/run",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/{schedule}/run",
        status=404,
    ),
    Case(method="GET", path="/analytics/queue", scopes=READS_JOBS, template="/analytics/queue"),
    Case(method="GET", path="/analytics/summary?span=1h", scopes=READS_JOBS, template="/analytics/summary"),
    Case(method="GET", path="/metrics", scopes=READS_JOBS, template="/metrics"),
    Case(method="GET", path="/system/doctor", scopes=("system:ro", "system:rw"), template="/system/doctor"),
    Case(
        method="GET",
        path="/system/selfcheck",
        scopes=("system:ro", "system:rw"),
        template="/system/selfcheck",
    ),
    Case(method="GET", path="/config/view", scopes=("system:ro", "system:rw"), template="/config/view"),
    Case(method="GET", path="/config/history", scopes=("system:ro", "system:rw"), template="/config/history"),
    Case(method="GET", path="/config/diff", scopes=("system:ro", "system:rw"), template="/config/diff"),
    Case(method="GET", path="/config/value", scopes=("system:ro", "system:rw"), template="/config/value"),
    Case(method="GET", path="/config/changes", scopes=("system:ro", "system:rw"), template="/config/changes"),
    Case(method="POST", path="/config/plan", scopes=("system:rw",), template="/config/plan"),
    Case(method="POST", path="/config/apply", scopes=("system:rw",), template="/config/apply"),
    Case(
        method="POST",
        path="/config/rollback",
        body={"to": "0000000000000"},
        scopes=("system:rw",),
        template="/config/rollback",
        status=404,
    ),
    Case(method="POST", path="/system/reload", scopes=("system:rw",), template="/system/reload"),
    Case(method="POST", path="/system/sweep", scopes=("system:rw",), template="/system/sweep"),
    Case(
        method="POST",
        path="/system/breaker/echo/reset",
        scopes=("system:rw",),
        template="/system/breaker/{plugin}/reset",
    ),
    Case(
        method="POST",
        path="/plugin/echo",
        scopes=("plugin:rw", "echo:rw"),
        template="/plugin/{plugin}",
        status=202,
        body=None,
    ),
    Case(method="GET", path="/pipelines", scopes=READS_PLUGINS, template="/pipelines", status=200, body=None),
    Case(
        method="GET",
        path="/pipeline/chain",
        scopes=READS_PLUGINS,
        template="/pipeline/{pipeline}",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/pipeline/chain/graph?format=svg",
        scopes=READS_PLUGINS,
        template="/pipeline/{pipeline}/graph",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/run/01a1e212-0000-7000-8000-000000000000/follow",
        scopes=READS_JOBS,
        template="/run/{job_id}/follow",
        status=404,
        body=None,
    ),
    Case(
        method="GET",
        path="/run/01a1e212-0000-7000-8000-000000000000/explain",
        scopes=READS_JOBS,
        template="/run/{job_id}/explain",
        status=404,
        body=None,
    ),
    Case(
        method="POST",
        path="/run/01a1e212-0000-7000-8000-000000000000/retry",
        scopes=("jobs:rw",),
        template="/run/{job_id}/retry",
        status=404,
        body={"step": "x"},
    ),
    Case(
        method="GET",
        path="/job/01a1e212-0000-7000-8000-000000000000/wait",
        scopes=READS_JOBS,
        template="/job/{job_id}/wait",
        status=404,
        body=None,
    ),
    Case(
        method="GET",
        path="/job-logs/follow?timeout=1ms",
        scopes=READS_JOBS,
        template="/job-logs/follow",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/ledger",
        scopes=("events:ro", "events:rw", "read:events"),
        template="/ledger",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/ledger/follow?timeout=1ms",
        scopes=("events:ro", "events:rw", "read:events"),
        template="/ledger/follow",
        status=200,
        body=None,
    ),
    Case(
        method="GET", path="/queue/status", scopes=READS_JOBS, template="/queue/status", status=200, body=None
    ),
    Case(method="GET", path="/queue", scopes=READS_JOBS, template="/queue", status=200, body=None),
    Case(
        method="POST",
        path="/queue/purge",
        scopes=("jobs:rw",),
        template="/queue/purge",
        status=200,
        body={"plugin": "echo", "dry_run": True},
    ),
    Case(
        method="GET",
        path="/plugin/echo/state",
        scopes=(*READS_PLUGINS, "echo:ro", "echo:rw"),
        template="/plugin/{plugin}/state",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/plugin/echo/facts",
        scopes=(*READS_PLUGINS, "echo:ro", "echo:rw"),
        template="/plugin/{plugin}/facts",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/plugin/echo/pending",
        scopes=(*READS_PLUGINS, "echo:ro", "echo:rw"),
        template="/plugin/{plugin}/pending",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/plugins/unhealthy",
        scopes=READS_PLUGINS,
        template="/plugins/unhealthy",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/schedules/next",
        scopes=READS_JOBS,
        template="/schedules/next",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/schedule/echo/hourly/history",
        scopes=READS_JOBS,
        template="/schedule/{plugin}/{schedule}/history",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/schedule/echo/hourly/explain",
        scopes=READS_JOBS,
        template="/schedule/{plugin}/{schedule}/explain",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/schedule/echo/history",
        scopes=READS_JOBS,
        template="/schedule/{plugin}/history",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/schedule/echo/explain",
        scopes=READS_JOBS,
        template="/schedule/{plugin}/explain",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/schedule/echo/pause",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/pause",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/schedule/echo/resume",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/resume",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/schedule/echo/run",
        scopes=("jobs:rw",),
        template="/schedule/{plugin}/run",
        status=200,
        body={"dry_run": True},
    ),
    Case(
        method="GET",
        path="/webhooks",
        scopes=("system:ro", "system:rw"),
        template="/webhooks",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/webhooks/deliveries",
        scopes=READS_JOBS,
        template="/webhooks/deliveries",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/webhooks/deliveries/none/resend",
        scopes=("jobs:rw",),
        template="/webhooks/deliveries/{delivery_id}/resend",
        status=404,
        body=None,
    ),
    Case(
        method="GET",
        path="/system/status",
        scopes=("system:ro", "system:rw"),
        template="/system/status",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/system/health",
        scopes=("system:rw",),
        template="/system/health",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/system/breaker/echo",
        scopes=("system:ro", "system:rw"),
        template="/system/breaker/{plugin}",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/tokens",
        scopes=("system:ro", "system:rw"),
        template="/tokens",
        status=200,
        body=None,
    ),
    Case(
        method="GET",
        path="/tokens/echo:ro",
        scopes=("system:ro", "system:rw"),
        template="/tokens/{name}",
        status=200,
        body=None,
    ),
    Case(
        method="POST",
        path="/tokens",
        scopes=("system:rw",),
        template="/tokens",
        status=200,
        body={"name": "fresh", "dry_run": True},
    ),
    Case(
        method="POST",
        path="/tokens/nobody/rotate",
        scopes=("system:rw",),
        template="/tokens/{name}/rotate",
        status=404,
        body=None,
    ),
    Case(
        method="POST",
        path="/tokens/nobody/revoke",
        scopes=("system:rw",),
        template="/tokens/{name}/revoke",
        status=404,
        body=None,
    ),
    Case(
        method="GET",
        path=f"/job/{MISSING}/follow",
        scopes=READS_JOBS,
        template="/job/{job_id}/follow",
        status=404,
    ),
    Case(
        method="POST",
        path="/run/echo",
        scopes=("plugin:rw", "echo:rw"),
        template="/run/{name}",
        status=202,
    ),
    Case(method="POST", path="/run/chain", scopes=("plugin:rw",), template="/run/{name}", status=202),
    Case(
        method="POST",
        path="/run/reader",
        scopes=("plugin:rw", "reader:rw"),  # the command is in the body, so its type is not looked up
        template="/run/{name}",
        status=202,
        body={"command": "look"},
    ),
    Case(
        method="POST",
        path="/jobs/retry",
        scopes=("jobs:rw",),
        template="/jobs/retry",
        body={"plugin": "echo", "dry_run": True},
    ),
    Case(
        method="POST",
        path="/jobs/cancel",
        scopes=("jobs:rw",),
        template="/jobs/cancel",
        body={"plugin": "echo", "dry_run": True},
    ),
    Case(
        method="POST",
        path="/deliveries/resend",
        scopes=("jobs:rw",),
        template="/deliveries/resend",
        body={"status": "dropped", "dry_run": True},
    ),
    Case(
        method="GET",
        path="/system/digest?since=1h",
        scopes=("system:ro", "system:rw"),
        template="/system/digest",
    ),
    Case(method="GET", path="/analytics/plugins", scopes=READS_JOBS, template="/analytics/plugins"),
    Case(method="GET", path="/analytics/series", scopes=READS_JOBS, template="/analytics/series"),
    Case(method="GET", path="/tools", scopes=EVERY_SCOPE, template="/tools"),
    Case(method="POST", path="/tools/job_list", scopes=READS_JOBS, template="/tools/{tool}", body={}),
)
OPEN = (
    "/",
    "/healthz",
    "/readyz",
    "/plugins",
    "/skills",
    "/openapi.json",
    "/plugin/echo/openapi.json",
)
NAMES = [f"{case.method} {case.path}" for case in CASES]
MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: reader
version: 1.0.0
protocol: 2
entrypoint: run.sh
commands:
  look: {type: read}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(
        tmp_path_factory.mktemp("api"),
        "  reader: {}\n  ghost: {}\n",
        more=PIPELINES,
        scopes=EVERY_SCOPE,
    )
    text = workspace.config.read_text()
    workspace.config.write_text(
        text.replace(
            "  echo: {}\n", "  echo: {schedules: [{id: hourly, every: 1h, timezone: Asia/Kolkata}]}\n"
        )
    )
    plugin = workspace.plugin("reader", READER)
    (plugin / "manifest.yaml").write_text(MANIFEST)
    with an_api(workspace) as api:
        yield api


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_scopes_that_allow_a_request(api: Api, case: Case) -> None:
    """Exactly the listed scopes and `*` allow it; rw includes ro, and older names of scopes count."""
    allowed = {"*", *case.scopes}
    for scope in EVERY_SCOPE:
        response = api.ask(case.method, case.path, case.body, token=token_for(scope))
        if scope in allowed:
            assert response.status == case.status, (scope, response)
        else:
            assert (response.status, response.code) == (403, "denied"), (scope, response)
            assert response.body["error"]["details"]["needed"], response


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_missing_or_unknown_token_is_refused(api: Api, case: Case) -> None:
    """The response is 401, and tells nothing about the endpoint."""
    response = api.ask(case.method, case.path, case.body, token=None)
    assert (response.status, response.code) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == 'Bearer realm="ductile"'
    basic = api.ask(case.method, case.path, case.body, headers={"Authorization": "Basic YTpi"})
    assert basic.status in (401, 429)


@pytest.mark.parametrize("path", OPEN)
def test_these_endpoints_are_open_on_loopback(api: Api, path: str) -> None:
    """Health and the catalogue need no token while the API listens on this machine only."""
    response = api.ask("GET", path, token=None)
    assert response.status == 200, response
    if not path.endswith(".json"):
        assert isinstance(response.body["message"], str)


def test_every_endpoint_is_among_the_cases() -> None:
    """An endpoint that is added needs a case."""
    tested = {(case.method, case.template) for case in CASES} | {
        ("GET", path.replace("echo", "{plugin}")) for path in OPEN
    }
    assert tested == {(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS}


def test_every_answer_has_a_message(api: Api) -> None:
    """Every error is a JSON object with a readable message."""
    for case in CASES:
        if case.path == "/metrics":
            continue
        response = api.ask(case.method, case.path, case.body)
        assert isinstance(response.body["message"], str), case
        assert response.body["message"], case


def test_a_job_from_submission_to_its_result(api: Api) -> None:
    """A submission is answered 202 with the id; the job has its fields, result and transitions."""
    submitted = api.post("/plugin/echo/poll", {"payload": {"n": 1}}, token=token_for("echo:rw"))
    assert submitted["status"] == "queued"
    assert submitted["deduplicated"] is False
    job = api.ended(submitted["job_id"])
    assert (job["job_id"], job["status"]) == (submitted["job_id"], "succeeded")
    assert (job["submitted_by"], job["submitted_detail"]) == ("api", "echo:rw")
    assert job["payload"] == {"n": 1}
    assert job["result"]["result"] == "done"
    assert [step["to"] for step in job["transitions"]] == ["queued", "running", "succeeded"]
    assert api.get(f"/jobs/{job['job_id']}") == api.get(f"/job/{job['job_id']}")
    assert api.get(f"/job/{job['job_id']}/tree")["tree"]["job_id"] == job["job_id"]
    (execution,) = api.get(f"/job/{job['job_id']}/log")["executions"]
    assert execution["result"]["result"] == "done"


def test_pages_follow_one_another(api: Api) -> None:
    """Jobs are listed newest first, with cursors, filters and aliases; a limit beyond 200 is refused."""
    job_ids = [api.post("/plugin/reader/look")["job_id"] for _ in range(5)]
    for job_id in job_ids:
        api.ended(job_id)
    first = api.get("/jobs?plugin=reader&limit=3&status=ok")
    second = api.get(f"/jobs?plugin=reader&limit=3&status=ok&cursor={first['next_cursor']}")
    listed_ids = [job["job_id"] for job in (*first["jobs"], *second["jobs"])]
    assert listed_ids[:5] == job_ids[::-1]
    assert "payload" not in first["jobs"][0]
    assert api.ask("GET", "/jobs?limit=201").code == "usage"
    assert api.ask("GET", "/jobs?limit=x").code == "usage"
    assert api.ask("GET", "/jobs?status=lost").code == "usage"
    assert api.ask("GET", "/jobs?cursor=abc").code == "refused"
    assert api.ask("GET", "/jobs?plugni=reader").body["error"]["hint"] == "did you mean plugin?"
    assert api.get(f"/jobs?job_id={job_ids[0]}&submitted_by=api")["jobs"][0]["job_id"] == job_ids[0]
    assert len(api.get("/job-logs?plugin=reader&limit=2")["logs"]) == 2
    assert api.get("/job-logs?status=pending")["logs"] == []
    found_jobs = api.get("/jobs?query=read&plugin=reader")["jobs"]
    assert {job["job_id"] for job in found_jobs} >= set(job_ids)
    assert api.get("/jobs?query=nobody-said-this")["jobs"] == []


def test_cancel_and_retry(tmp_path: Path) -> None:
    """Cancel kills a running job and retry queues a dead one; in another status the response is 409."""
    workspace = an_api_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", "#!/bin/sh\ncat >/dev/null\nexec sleep 300\n")
    with an_api(workspace) as api:
        job_id = api.post("/plugin/slow/poll")["job_id"]
        api.daemon.wait_until_started(job_id)
        assert api.ask("POST", f"/job/{job_id}/retry").code == "conflict"
        cancellation = api.post(f"/job/{job_id}/cancel", status=200)
        assert cancellation["cancel"] == "requested"
        assert cancellation["message"] == "The job is being ended: it was running."
        job = api.ended(job_id)
        assert (job["status"], job["reason"]) == ("dead", "cancelled")
        assert api.ask("POST", f"/job/{job_id}/cancel").status == 409
        assert api.post(f"/job/{job_id}/retry", status=200)["status"] == "queued"


def test_a_breaker_of_a_command_that_is_not_there(api: Api) -> None:
    """The response is 404 and names the commands that exist."""
    for body in ({"command": "pull"}, {"command": "pull", "dry_run": True}):
        response = api.ask("POST", "/system/breaker/echo/reset", body)
        assert (response.status, response.code) == (404, "not_found")
        assert response.body["error"]["hint"] == "did you mean poll? It has poll, handle, health."
    assert api.post("/system/breaker/echo/reset", {"command": "poll"}, status=200)["reset"] == 0


def test_an_event_without_a_listener_is_answered(api: Api) -> None:
    """The event is accepted, with a message that tells a typing error from a success."""
    published = api.post("/event", {"type": " echo.handle "})
    assert (published["type"], len(published["started"]), published["message"]) == (
        "echo.handle",
        1,
        "The event was published.",
    )
    unmatched = api.post("/event", {"type": "echo.handel"})
    assert unmatched["started"] == []
    no_target = "No route or pipeline takes {} from `api`, so nothing was started"
    assert unmatched["message"] == f"{no_target.format('echo.handel')}: did you mean echo.handle?"
    assert api.post("/event", {"type": "x"})["message"] == f"{no_target.format('x')}."
    event = {"type": "echo.handle", "dedupe_key": "heard-once"}
    api.ended(api.post("/event", event)["started"][0]["job_id"])
    assert api.post("/event", event)["message"] == "This is a duplicate: what it starts exists already."
    dropped = api.post("/event", {"type": "only.some"})
    assert dropped["dropped"][0]["target"] == "choosy"
    assert dropped["message"] == "Nothing was started: `dropped` has the reasons."


@pytest.mark.parametrize("event_type", ["", "  ", "ductile.step.succeeded", " ductile.x", "a" * 256])
def test_an_event_type_that_cannot_be(api: Api, event_type: str) -> None:
    """Types of Ductile itself are refused; a type is a name of 255 characters at most."""
    response = api.ask("POST", "/event", {"type": event_type})
    assert (response.status, response.code) == (422, "refused")
    assert response.body["error"]["details"]["field"] == "type"
    assert len(response.body["message"]) < 200


def test_the_catalogue_tells_what_can_be_called(api: Api) -> None:
    """The catalogue has every runnable command and pipeline, with the request that starts it."""
    listed_skills = api.get("/skills")["skills"]
    skills = {skill["name"]: skill for skill in listed_skills if skill["kind"] != "operation"}
    assert skills.keys() == {"echo.poll", "echo.handle", "reader.look", "chain", "choosy"}
    operations = {
        (skill["call"]["method"], skill["call"]["path"])
        for skill in listed_skills
        if skill["kind"] == "operation"
    }
    assert operations <= {(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS}
    assert len(listed_skills) == len(skills) + len(operations)
    assert skills["reader.look"]["call"] == {"method": "POST", "path": "/plugin/reader/look"}
    assert (skills["reader.look"]["scope"], skills["reader.look"]["read_only"]) == ("reader:ro", True)
    plugins = api.get("/plugins")["plugins"]
    assert [(plugin["name"], plugin["standing"]) for plugin in plugins] == [
        ("echo", "active"),
        ("reader", "active"),
        ("ghost", "refused"),
    ]
    assert [plugin["refused"] is None for plugin in plugins] == [True, True, False]
    assert plugins[2]["refused"] == api.get("/plugin/ghost")["refused"]
    assert api.get("/plugin/reader")["commands"]["look"]["call"] == "POST /plugin/reader/look"
    event, _ = api.get("/topology")["events"]
    assert event == {
        "type": "echo.handle",
        "emitted_by": [],
        "heard_by": [{"pipeline": "chain", "from": None}],
    }


def test_the_catalogue_is_a_skill_file_too(api: Api) -> None:
    """The Markdown export has the address that the caller has used."""
    response = api.ask("GET", "/skills?format=markdown", token=None)
    assert (response.status, response.headers["content-type"]) == (200, "text/markdown; charset=utf-8")
    text = response.content.decode()
    assert text.startswith("---\nname: ductile\n")
    assert f"http://127.0.0.1:{api.port}" in text
    assert "`POST /plugin/reader/look` (scope: reader:ro)" in text
    assert api.ask("GET", "/skills?format=json").content == api.ask("GET", "/skills").content
    assert api.ask("GET", "/skills?format=pdf").code == "usage"


def test_the_cause_of_a_failure_is_served_over_http(tmp_path: Path) -> None:
    """The explanation of a job needs no shell on the machine of the daemon."""
    workspace = an_api_workspace(tmp_path, "  broken: {retry: {max_attempts: 1}}\n")
    workspace.plugin("broken", BROKEN)
    with an_api(workspace) as api:
        job_id = api.post("/plugin/broken/poll")["job_id"]
        api.ended(job_id)
        explanation = api.get(f"/job/{job_id}/explain", token=token_for("jobs:ro"))
        assert explanation["verdict"] == (
            "broken poll failed in its only attempt (plugin_error): it is broken."
        )
        assert explanation["advice"]


def test_the_configuration_is_shown_without_its_secrets(api: Api) -> None:
    """The configuration in force is shown with defaults filled in and tokens masked."""
    response = api.ask("GET", "/config/view")
    assert response.body["config"]["service"]["max_workers"] == 4
    assert response.body["config"]["service"]["max_hops"] == 20
    assert b"canary" not in response.content
    warning = response.body["warnings"][0]
    assert warning["message"] == "a secret is written in the clear"
    assert (warning["file"], warning["key"]) == (str(api.workspace.config), "api.auth.tokens[0].token")
    assert warning["line"] > 1
    assert api.post("/system/reload", status=200)["warnings"] == response.body["warnings"]


def test_figures(api: Api) -> None:
    """The API has figures of the queue and of executions, and the same for Prometheus."""
    job_id = api.post("/plugin/echo/poll")["job_id"]
    api.ended(job_id)
    assert api.get("/analytics/queue")["workers"] == 4
    echo = next(row for row in api.get("/analytics/summary")["plugins"] if row["plugin"] == "echo")
    assert echo["executions"] >= 1
    assert echo["success_ratio"] == 1.0
    assert api.get("/analytics/summary?span=0s")["executions"] == 0
    text = api.ask("GET", "/metrics").content.decode()
    assert 'ductile_job_outcomes_total{outcome="succeeded",plugin="echo"}' in text
    assert 'ductile_job_wait_seconds_count{plugin="echo"}' in text
    assert 'ductile_http_requests_total{endpoint="/metrics"' in api.ask("GET", "/metrics").content.decode()


def test_schedules_are_run_over_http(api: Api) -> None:
    """Running a schedule by hand starts a job, which the response names."""
    (entry,) = api.get("/schedules?plugin=echo")["schedules"]
    assert entry["id"] == "hourly"
    assert (entry["command"], entry["rule"], entry["timezone"]) == ("poll", "every 1h", "Asia/Kolkata")
    response = api.ask("POST", "/schedule/echo/hourly/run")
    assert response.status in (202, 409), response  # the first job of the schedule may be unended
    if response.status == 202:
        assert api.ended(response.body["job_id"])["submitted_by"] == "scheduler"


def test_the_full_text_of_the_log_is_searched(tmp_path: Path) -> None:
    """Words of the output of an execution are found at once, not some seconds later."""
    workspace = an_api_workspace(tmp_path, "  poet: {}\n")
    workspace.plugin("poet", answering({"status": "ok", "result": "a nightingale sang"}))
    with an_api(workspace) as api:
        job_id = api.post("/plugin/poet/poll")["job_id"]
        api.ended(job_id)
        executions = api.get("/job-logs?query=nightingale")["logs"]
        assert [row["job_id"] for row in executions] == [job_id]
        assert api.get("/job-logs?query=lark")["logs"] == []
