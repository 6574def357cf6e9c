"""A pipeline is started by name, event, webhook and command line, always with the same tree."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from builders.daemons import PATIENCE
from builders.flows import a_flow_workspace, give_commands, shape
from builders.http import Api, an_api

SECRET = "webhook-canary"
PIPELINES = """\
pipelines:
  - name: youtube-summary
    on: discord.command.youtube
    execution_mode: synchronous
    timeout: 3m
    steps:
      - {id: download, uses: youtube.download}
      - {id: summarize, uses: fabric.summarize}
      - {id: notify, uses: discord.respond}
  - name: discord-fabric
    on: fabric.handle
    execution_mode: synchronous
    timeout: 30s
    steps: [{uses: fabric}]
  - name: sequence
    on: sequence.go
    steps:
      - {id: one, uses: work}
      - {id: two, uses: plain}
      - {id: three, uses: work}
  - name: several
    on: several.go
    steps:
      - {id: many, uses: twice}
      - {id: each, uses: work}
  - name: sorting
    on: sorting.go
    steps:
      - id: sort
        uses: sorted
        on_events:
          big: [{id: approve, uses: plain}, {id: sign, uses: work}]
      - {id: after, uses: work}
  - name: called
    if: {path: payload.skip, op: neq, value: true}
    steps:
      - {id: inner, uses: work}
  - name: caller
    on: caller.go
    steps:
      - {id: sub, call: called}
      - {id: back, uses: work}
  - name: nested
    on: nested.go
    steps:
      - id: group
        if: {path: payload.word, op: startswith, value: he}
        steps: [{id: a, uses: work}, {id: b, uses: plain}]
      - {id: end, uses: work}
  - name: parallel
    on: parallel.go
    steps:
      - id: both
        split: [{id: left, uses: work}, {id: right, steps: [{uses: plain}, {uses: work}]}]
      - id: joined
        uses: work
        if: {path: payload.branches.right.status, op: eq, value: succeeded}
        with:
          left: "{payload.branches.0.status}"
          right: "{payload.branches.1.id}"
          by: "{payload.branches.left.id}"
        baggage: {left.status: payload.branches.left.status}
  - name: half
    on: half.go
    steps:
      - id: both
        split: [{id: good, uses: work}, {id: bad, uses: broken}]
      - {id: never, uses: work}
  - name: anyway
    on: anyway.go
    steps:
      - {id: both, join: always, split: [{id: good, uses: work}, {id: bad, uses: broken}]}
      - {id: always, uses: work}
  - name: choosy
    on: choosy.go
    steps:
      - {id: no, uses: work, if: {path: payload.total, op: gte, value: 100}}
      - {id: yes, uses: work, if: {path: payload.word, op: eq, value: hello}}
  - name: carrying
    on: carrying.go
    steps:
      - {id: claim, uses: work, baggage: {kept.word: payload.word}, with: {text: "said {payload.word}"}}
      - {id: later, uses: work, with: {text: "{context.kept.word}"}}
  - name: unmade
    on: unmade.go
    steps:
      - {id: first, uses: work}
      - {id: cannot, uses: work, with: {text: "{payload.nowhere}"}}
"""
#: The status of a run of each pipeline, and the steps that run, in any order.
EXPECTED: dict[str, tuple[str, list[str]]] = {
    "youtube-summary": ("succeeded", ["download", "notify", "summarize"]),
    "discord-fabric": ("succeeded", ["1"]),
    "sequence": ("succeeded", ["one", "three", "two"]),
    "several": ("succeeded", ["each", "each", "many"]),
    "sorting": ("succeeded", ["after", "after", "sort", "sort/big/approve", "sort/big/sign"]),
    "caller": ("succeeded", ["back", "sub/inner"]),
    "nested": ("succeeded", ["end", "group/a", "group/b"]),
    "parallel": ("succeeded", ["both/left", "both/right/1", "both/right/2", "joined"]),
    "half": ("failed", ["both/bad", "both/good"]),
    "anyway": ("failed", ["always", "both/bad", "both/good"]),
    "choosy": ("succeeded", ["yes"]),
    "carrying": ("succeeded", ["claim", "later"]),
    "unmade": ("failed", ["cannot", "first"]),
}
PAYLOAD = {"word": "hello"}
ENDPOINTS = "".join(
    f"  - {{path: /hook/{name}, pipeline: {name}, secret_ref: shared}}\n" for name in EXPECTED
)
WEBHOOKS = (
    f"tokens: [{{name: shared, key: {SECRET}}}]\nwebhooks:\n  listen: 127.0.0.1:0\n  endpoints:\n"
    + ENDPOINTS.replace("  - ", "    - ")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    api: Api
    webhooks: int

    def by_name(self, pipeline: str) -> str:
        response = self.api.ask("POST", f"/pipeline/{pipeline}?async=true", {"payload": PAYLOAD})
        assert response.status == 202, response
        return str(response.body["job_id"])

    def by_event(self, pipeline: str) -> str:
        event_type = trigger_of(pipeline)
        published = self.api.post("/event", {"type": event_type, "payload": PAYLOAD})
        (started,) = published["started"]
        assert started["target"] == f"pipeline:{pipeline}"
        return str(started["job_id"])

    def by_webhook(self, pipeline: str) -> str:
        body = json.dumps(PAYLOAD).encode()
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        connection = http.client.HTTPConnection("127.0.0.1", self.webhooks, timeout=PATIENCE)
        headers = {"X-Hub-Signature-256": f"sha256={signature}"}
        connection.request("POST", f"/hook/{pipeline}", body=body, headers=headers)
        response = connection.getresponse()
        document = json.loads(response.read())
        connection.close()
        assert response.status == 202, document
        return str(document["job_id"])

    def by_command(self, pipeline: str) -> str:
        result = self.api.workspace.ductile(
            "pipeline", "run", pipeline, "--payload", json.dumps(PAYLOAD), "--json"
        )
        job: dict[str, Any] = json.loads(result.out)
        assert result.status == (0 if job["status"] == "succeeded" else 1)
        return str(job["job_id"])

    def by_sent_event(self, pipeline: str) -> str:
        words = ("event", "send", trigger_of(pipeline), "--payload", json.dumps(PAYLOAD))
        (started,) = self.api.workspace.json(*words)["started"]
        return str(started["job_id"])


def trigger_of(pipeline: str) -> str:
    return next(
        line.removeprefix("    on: ")
        for line in PIPELINES.partition(f"- name: {pipeline}\n")[2].splitlines()
        if line.startswith("    on: ")
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    seeds = "  youtube: {}\n  fabric: {}\n  discord: {}\n"
    workspace = a_flow_workspace(tmp_path_factory.mktemp("sources"), PIPELINES, plugins=seeds, more=WEBHOOKS)
    work = (workspace.directory / "demo" / "plugins" / "work" / "run.sh").read_text()
    for plugin, command in (("youtube", "download"), ("fabric", "summarize"), ("discord", "respond")):
        workspace.plugin(plugin, work)
        give_commands(workspace, plugin, command, "handle")
    with an_api(workspace) as api:
        address = api.daemon.wait_for("webhook.listening")["address"]
        yield Sources(api=api, webhooks=int(address.rpartition(":")[2]))


@pytest.mark.parametrize("pipeline", EXPECTED)
def test_every_source_makes_the_same_tree(sources: Sources, pipeline: str) -> None:
    """Every source of a run gives the same steps in the same tree."""
    shapes = []
    for start in (
        sources.by_name,
        sources.by_event,
        sources.by_webhook,
        sources.by_command,
        sources.by_sent_event,
    ):
        run_id = start(pipeline)
        assert sources.api.ended(run_id)["status"] == EXPECTED[pipeline][0]
        shapes.append(shape(sources.api.get(f"/job/{run_id}/tree")["tree"]))
    assert shapes == [shapes[0]] * len(shapes)
    assert sorted(steps_in(shapes[0])) == EXPECTED[pipeline][1]


def steps_in(tree: Any) -> list[str]:
    _plugin, _command, step, _status, _reason, *below = tree
    return [*([step] if step else []), *(name for child in below for name in steps_in(child))]


def explain(sources: Sources, pipeline: str) -> dict[str, Any]:
    run_id = sources.by_command(pipeline)
    explanation = sources.api.workspace.json("pipeline", "explain", run_id)
    return {step["step"]: step for step in explanation["steps"]}


def test_the_trigger_endpoint_of_the_seed(sources: Sources) -> None:
    """POST /trigger/p/c starts the pipeline with `on: p.c`; the client reads `result.stdout`."""
    response = sources.api.ask(
        "POST", "/trigger/fabric/handle", {"payload": {"text": "hello", "pattern": "summarize"}}
    )
    assert response.status == 200
    assert (response.body["status"], response.body["execution_mode"]) == ("succeeded", "synchronous")
    assert json.loads(response.body["result"]["stdout"])["trail"] == ["1"]


def test_a_step_that_is_called_sees_what_was_claimed(sources: Sources) -> None:
    """Baggage travels to later steps; a payload goes to the next step only."""
    run_id = sources.by_command("carrying")
    steps = {
        job["step"]: job for job in sources.api.get(f"/jobs?run={run_id}&limit=200")["jobs"] if job["step"]
    }
    later = sources.api.get(f"/job/{steps['later']['job_id']}")
    assert later["payload"] == {"text": "hello"}
    assert later["result"]["result"]["baggage"] == {"word": "hello"}


def test_a_join_sees_its_branches(sources: Sources) -> None:
    """`payload.branches` has id, status and payload of each branch; the step after a join runs once."""
    run_id = sources.by_command("parallel")
    joined = [
        job for job in sources.api.get(f"/jobs?run={run_id}&limit=200")["jobs"] if job["step"] == "joined"
    ]
    assert len(joined) == 1
    assert sources.api.get(f"/job/{joined[0]['job_id']}")["payload"] == {
        "left": "succeeded",
        "right": "right",
        "by": "left",
    }


def test_explain_shows_a_bypass_with_its_values(sources: Sources) -> None:
    """The explanation names the comparison that was false, and the value."""
    steps = explain(sources, "choosy")
    assert steps["yes"]["outcome"] == "ran"
    assert steps["no"]["outcome"] == "bypassed"
    (bypass,) = steps["no"]["bypasses"]
    assert "payload.total gte 100 is false (there is no payload.total)" in bypass["explanation"]


def test_explain_shows_unmade_and_unreached_steps(sources: Sources) -> None:
    """A step that cannot be created has an error, and later steps are not reached."""
    steps = explain(sources, "unmade")
    assert steps["cannot"]["outcome"] == "not_made"
    assert "payload.nowhere" in steps["cannot"]["errors"][0]
    assert explain(sources, "half")["never"]["outcome"] == "not_reached"
    text = sources.api.workspace.ductile("pipeline", "explain", sources.by_command("half")).out
    assert "half: failed (partial_success)" in text
    assert "not reached" in text
    assert "it is broken" in text


def test_show_and_tree_of_a_run(sources: Sources) -> None:
    """`job show` has the steps and the bypasses of a run, `job tree` marks steps."""
    run_id = sources.by_command("choosy")
    workspace = sources.api.workspace
    assert [(step["step"], step["outcome"]) for step in workspace.json("job", "show", run_id)["steps"]] == [
        ("no", "bypassed"),
        ("yes", "ran"),
    ]
    assert "payload.total gte 100 is false" in workspace.ductile("job", "show", run_id).out
    assert "[yes] work handle" in workspace.ductile("job", "tree", run_id).out


def test_explaining_a_step_explains_its_run(sources: Sources) -> None:
    """The id of a step is as good as that of its run; a job outside a run is refused."""
    run_id = sources.by_command("sequence")
    step_id = sources.api.get(f"/jobs?run={run_id}")["jobs"][0]["job_id"]
    assert sources.api.workspace.json("pipeline", "explain", step_id)["run"]["job_id"] == run_id
    job_id = sources.api.workspace.json("run", "work", "handle")["job_id"]
    assert sources.api.workspace.json("pipeline", "explain", job_id, status=1)["error"]["code"] == "conflict"
