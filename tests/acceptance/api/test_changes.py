"""Requests that change something and need no body: a body is checked nevertheless."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders.http import Api, an_api, an_api_workspace

#: The path of every such request.
CHANGES = (
    "/job/{job}/cancel",
    "/job/{job}/retry",
    "/schedule/echo/hourly/pause",
    "/schedule/echo/hourly/resume",
    "/schedule/echo/hourly/run",
    "/system/reload",
    "/system/breaker/echo/reset",
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(
        tmp_path_factory.mktemp("api"), "  slow: {}\n  broken: {}\n", api="  max_body_size: 64KB\n"
    )
    text = workspace.config.read_text()
    schedules = "  echo: {schedules: [{id: hourly, every: 1h}]}\n"
    workspace.config.write_text(text.replace("  echo: {}\n", schedules))
    workspace.plugin("slow", "#!/bin/sh\ncat >/dev/null\nexec sleep 300\n")
    workspace.plugin(
        "broken", '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "no", "retry": false}\'\n'
    )
    with an_api(workspace) as api:
        yield api


@pytest.fixture(scope="module")
def running(api: Api) -> str:
    """Return the id of a job that runs until it is killed."""
    job_id: str = api.post("/plugin/slow/poll")["job_id"]
    api.daemon.wait_until_started(job_id)
    return job_id


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"this is not json", 400, "not JSON"),
        (b"[]", 400, "has to be a JSON object"),
        ({"dryrun": True}, 422, "there is no field dryrun"),
        ({"dry_run": "yes"}, 422, "dry_run has to be true or false"),
        (b" " * 64_001, 413, "larger than 64KB"),
    ],
    ids=["no json", "no object", "unknown field", "wrong type", "too large"],
)
def test_a_body_is_read_before_anything_is_done(
    api: Api, running: str, path: str, body: object, status: int, message: str
) -> None:
    """The response is 400, 413 or 422 as for every other request, and nothing is changed."""
    response = api.ask("POST", path.format(job=running), body)
    assert response.status == status, response
    assert message in response.body["message"]
    assert api.get(f"/job/{running}")["status"] == "running"
    assert api.get(f"/job/{running}")["cancel_requested_at"] is None
    (schedule,) = api.get("/schedules")["schedules"]
    assert schedule["paused_at"] is None


def test_a_dry_run_changes_nothing(api: Api, running: str) -> None:
    """`dry_run` means what `--dry-run` means on the command line, and the response says so."""
    failed_job = api.post("/plugin/broken/poll")["job_id"]
    assert api.ended(failed_job)["status"] == "failed"
    for path in CHANGES:
        job_id = failed_job if path.endswith("/retry") else running
        response = api.ask("POST", path.format(job=job_id), {"dry_run": True})
        assert (response.status, response.body["dry_run"]) == (200, True), response
        assert response.body["message"] == "This was a dry run: nothing was changed."
    assert api.get(f"/job/{running}")["cancel_requested_at"] is None
    assert api.get(f"/job/{failed_job}")["status"] == "failed"
    (schedule,) = api.get("/schedules")["schedules"]
    assert schedule["paused_at"] is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/topology"),
        ("GET", "/plugins"),
        ("GET", "/metrics"),
        ("GET", "/jobs"),
        ("POST", "/plugin/echo/poll"),
        ("POST", "/event"),
        *(("POST", path) for path in CHANGES),
    ],
)
def test_an_unknown_parameter_is_refused(api: Api, running: str, method: str, path: str) -> None:
    """`?async=true` or `?dry_run=true` is refused where it means nothing."""
    body = {"type": "a.b"} if path == "/event" else None
    response = api.ask(method, f"{path.format(job=running)}?asnyc=true", body)
    assert (response.status, response.code) == (400, "usage"), response
    assert response.body["message"] == "there is no parameter asnyc"
    assert response.body["error"]["hint"]
    assert api.get(f"/job/{running}")["cancel_requested_at"] is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_health_probe_may_carry_anything(api: Api, path: str) -> None:
    """Monitors add parameters of their own, and must not take a refusal for an unhealthy daemon."""
    assert api.ask("GET", f"{path}?nonce=17", token=None).status == 200
