"""State webhooks of a plugin or a pipeline in the configuration: which jobs report, and to which URL."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import BROKEN, Workspace, a_daemon, a_workspace
from builders.http import Api, an_api, an_api_workspace
from builders.receivers import ReceivedRequest, Receiver, a_receiver

SECRET = "canary-3c9e"
CONFIG = """\
state_webhooks: {{allow: [127.0.0.1], timeout: 20s}}
routes: [{{from: api, event_type: thing.found, to: echo}}]
pipelines:
  - name: two
    on: two.wanted
    state_webhook_url: "{run}"
    state_webhook_events: [failed, done]
    steps: [{{id: first, uses: echo}}, {{id: second, uses: echo}}]
"""
PLUGINS = """\
    state_webhook_url: "{url}"
    schedules: [{{id: yearly, cron: "@yearly", payload: {{model: scheduled}}}}]
  broken: {{state_webhook_url: "{url}", max_attempts: 1}}
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with a_receiver() as receiver:
        yield receiver


@pytest.fixture
def api(tmp_path: Path, receiver: Receiver) -> Iterator[Api]:
    run = receiver.url(f"/run/{SECRET}")
    workspace = an_api_workspace(tmp_path, more=CONFIG.format(run=run))
    plugins = PLUGINS.format(url=receiver.url(f"/plugin/{SECRET}"))
    workspace.plugin("broken", BROKEN)
    workspace.config.write_text(workspace.config.read_text().replace("  echo: {}\n", f"  echo:\n{plugins}"))
    workspace.ductile("config", "lock")
    with an_api(workspace) as api:
        yield api


def reported_states(receiver: Receiver, job_id: str, final_state: str = "done") -> list[tuple[str, str]]:
    """Wait for the final state of a job, and return path and state of each request about the job."""

    def about(requests: list[ReceivedRequest]) -> list[ReceivedRequest]:
        return [request for request in requests if request.body["job_id"] == job_id]

    job_requests = about(
        receiver.wait_for(
            lambda requests: any(request.body["state"] == final_state for request in about(requests))
        )
    )
    return sorted((request.path.split("/")[1], request.body["state"]) for request in job_requests)


ALL = [("plugin", "done"), ("plugin", "loading"), ("plugin", "queued"), ("plugin", "working")]


def test_jobs_from_every_source_report_to_the_url_of_their_plugin(api: Api, receiver: Receiver) -> None:
    """The API, the command line, a schedule and a route submit the jobs."""
    workspace = api.workspace
    by_api = api.post("/plugin/echo/handle", {"payload": {"model": "m"}})["job_id"]
    by_cli = workspace.json("run", "echo", "--no-wait")["job_id"]
    # `schedule run` is refused while another poll is unfinished.
    assert reported_states(receiver, by_cli) == ALL
    by_schedule = workspace.json("schedule", "run", "echo")["job_id"]
    (routed,) = api.post("/event", {"type": "thing.found", "payload": {}})["started"]
    for job_id in (by_api, by_schedule, routed["job_id"]):
        assert reported_states(receiver, job_id) == ALL
    models = {request.body["job_id"]: request.body["model"] for request in receiver.requests}
    assert (models[by_api], models[by_cli], models[by_schedule]) == ("m", None, "scheduled")


def test_a_run_reports_and_its_steps_do_not(api: Api, receiver: Receiver) -> None:
    """Only the chosen states are sent, for a run by name and for one that an event starts."""
    named = api.post("/pipeline/two", {"payload": {}})["job_id"]
    (started,) = api.post("/event", {"type": "two.wanted", "payload": {}})["started"]
    for run in (named, started["job_id"]):
        assert reported_states(receiver, run) == [("run", "done")]
    assert {request.body["job_id"] for request in receiver.requests} == {named, started["job_id"]}


def test_the_url_of_a_submission_is_sent_the_same(api: Api, receiver: Receiver) -> None:
    body = {"payload": {}, "state_webhook_url": receiver.url("/own"), "state_webhook_events": ["done"]}
    job_id = api.post("/plugin/echo/handle", body)["job_id"]
    receiver.wait_for(lambda requests: len(requests) == 5)
    assert reported_states(receiver, job_id) == [("own", "done"), *ALL]


def test_a_job_keeps_the_url_that_it_was_submitted_with(api: Api, receiver: Receiver, tmp_path: Path) -> None:
    """A reload changes later jobs only; a retry of an earlier job reports to the earlier URL."""
    job_id = api.post("/plugin/broken/handle", {"payload": {}})["job_id"]
    reported_states(receiver, job_id, "failed")
    text = api.workspace.config.read_text().replace(f"/plugin/{SECRET}", f"/later/{SECRET}")
    api.workspace.config.write_text(text)
    assert api.workspace.ductile("config", "lock").status == 0
    assert api.workspace.ductile("reload").status == 0
    (tmp_path / "demo/plugins/broken/mended").touch()
    assert api.workspace.ductile("job", "retry", job_id).status == 0
    assert {path for path, _ in reported_states(receiver, job_id)} == {"plugin"}
    later = api.post("/plugin/broken/handle", {"payload": {}})["job_id"]
    assert {path for path, _ in reported_states(receiver, later)} == {"later"}


def test_no_output_repeats_the_url(api: Api, receiver: Receiver) -> None:
    job_id = api.post("/plugin/echo/handle", {"payload": {}})["job_id"]
    reported_states(receiver, job_id)
    for words in (
        ("config", "show"),
        ("config", "get", "plugins.echo.state_webhook_url"),
        ("plugin", "show", "echo"),
        ("webhook", "deliveries"),
        ("job", "show", job_id),
        ("event", "tail"),
    ):
        result = api.workspace.ductile(*words)
        assert result.status == 0, result
        assert SECRET not in result.out + result.err, words
    assert SECRET not in json.dumps(api.get("/config/view"))
    assert SECRET not in json.dumps(api.daemon.whole_log())


def test_a_job_without_a_daemon_is_reported_when_there_is_one(tmp_path: Path, receiver: Receiver) -> None:
    """The states are stored with the job; the next daemon sends them, also after a kill."""
    workspace = with_url(a_workspace(tmp_path), receiver.url("/plugin/x"))
    assert workspace.ductile("run", "echo").status == 0
    assert receiver.requests == []
    with a_daemon(workspace):
        receiver.wait_for(lambda requests: len(requests) == 4)
    assert sorted(receiver.states()) == ["done", "loading", "queued", "working"]


def test_a_url_that_is_not_allowed_is_an_error_with_its_line(tmp_path: Path) -> None:
    workspace = with_url(a_workspace(tmp_path), f"http://127.0.0.1/{SECRET}", allow="")
    result = workspace.ductile("config", "check")
    assert result.status == 78
    assert "config.yaml:6" in result.out
    assert "state_webhooks.allow does not list it" in result.out
    assert SECRET not in result.out + result.err


def with_url(
    workspace: Workspace, url: str, *, allow: str = "state_webhooks: {allow: [127.0.0.1], timeout: 20s}\n"
) -> Workspace:
    text = workspace.config.read_text().replace("  echo: {}\n", f'  echo: {{state_webhook_url: "{url}"}}\n')
    workspace.config.write_text(text + allow)
    workspace.ductile("config", "lock")
    return workspace


def test_the_hint_for_a_receiver_on_this_machine_works_when_typed(tmp_path: Path) -> None:
    """The URL is not written before its host is listed."""
    workspace = a_workspace(tmp_path)
    command = ("config", "set", "plugins.echo.state_webhook_url", "http://127.0.0.1:8099/jobs")
    refused = workspace.ductile(*command)
    assert (refused.status, "127.0.0.1 is not a public address" in refused.err) == (78, True)
    hint = "ductile config set 'state_webhooks.allow[+]' 127.0.0.1 --apply"
    assert hint in " ".join(refused.err.split())
    assert workspace.ductile(*shlex.split(hint)[1:]).status == 0
    assert workspace.ductile(*command, "--apply").status == 0
