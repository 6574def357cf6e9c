"""Skills describe for agents everything that can run, with the call and the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from builders.snapshots import a_snapshot
from ductile.api.skills import FIXED_SKILLS, all_skills, skill_file
from ductile.config.names import RESERVED
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import to_plain
from ductile.struct import to_builtins

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.config.snapshot import Snapshot

COMMANDS = """\
  look: {type: read, description: "Looks, and says\\n\\n# what it saw", input_schema: {where: string}}
  handle: {}
  health: {}
"""
CONFIG = """\
service: {name: "Ada's: home"}
api: {enabled: true, max_sync_timeout: 20s, auth: {tokens: [{name: a, token: canary-1, scopes: ["*"]}]}}
plugins:
  seer: {config: {api_key: canary-2}}
  waiter: {}
  resting: {uses: seer, enabled: false}
pipelines:
  - {name: later, on: it.came, steps: [{uses: seer.look}]}
  - name: soon
    execution_mode: synchronous
    if: {path: payload.order.total, op: gt, value: 10}
    steps: [{uses: seer, with: {text: "{payload.name}: {payload.items.0.sku}", key: canary-3}}]
  - {name: strict, execution_mode: synchronous, timeout: 5s, on_timeout: cancel, steps: [{uses: seer}]}
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    waiting = "  greet: {}\nexecution_mode: synchronous\n"
    return a_snapshot(tmp_path, CONFIG, seer=COMMANDS, waiter=waiting)


@pytest.fixture
def skills(snapshot: Snapshot) -> dict[str, Any]:
    return {skill.name: to_builtins(skill) for skill in all_skills(snapshot)}


def test_runnable_commands_and_fixed_skills_are_listed(skills: dict[str, Any]) -> None:
    """Commands, pipelines and fixed operations are listed; plugins that cannot run are not."""
    own = ["seer.look", "seer.handle", "waiter.greet", "later", "soon", "strict"]
    assert [*skills] == [*own, *(fixed.name for fixed in FIXED_SKILLS)]
    for operation in ("inspect", "explain", "cancel", "retry"):
        assert skills[f"jobs.{operation}"]["kind"] == "operation"
    assert skills["events.publish"]["body"].keys() == {"type", "payload", "dedupe_key", "dry_run"}
    assert "job_id" in skills["events.follow"]["query"]
    for fixed in FIXED_SKILLS:  # no plugin can have the same name
        assert fixed.name.partition(".")[0] in RESERVED


def test_the_answer_of_a_pipeline_is_its_own(skills: dict[str, Any]) -> None:
    """A synchronous pipeline is answered with 202 only if it takes too long."""
    assert skills["later"]["answer"].startswith("202 with `job_id`")
    assert skills["later"]["timeout_ms"] is None
    assert skills["soon"]["answer"].startswith("200 with `status`")
    assert "after 20 s, 202" in skills["soon"]["answer"]
    assert "goes on" in skills["soon"]["answer"]
    assert skills["soon"]["timeout_ms"] == 20_000
    assert "after 5 s, 202" in skills["strict"]["answer"]
    assert "is cancelled" in skills["strict"]["answer"]
    assert "POST /trigger/waiter/greet waits" in skills["waiter.greet"]["answer"]


def test_the_inputs_of_a_pipeline_are_listed(skills: dict[str, Any]) -> None:
    """The inputs come from `if`, from the references of the first step, or from the schema of its command."""
    assert skills["later"]["input_schema"] == skills["seer.look"]["input_schema"]
    assert skills["strict"]["input_schema"] is None
    schema = skills["soon"]["input_schema"]
    assert schema["required"] == ["items", "name", "order"]
    assert schema["properties"]["order"]["required"] == ["total"]
    assert schema["properties"]["items"] == {}
    payload = {"name": "Ada", "items": [{"sku": 1}], "order": {"total": 12}}
    assert jsonschema_rs.is_valid(schema, payload)
    for name in payload:
        assert not jsonschema_rs.is_valid(schema, {key: payload[key] for key in payload if key != name})


def test_the_skill_file_tells_the_same(snapshot: Snapshot, skills: dict[str, Any]) -> None:
    """The file has the same skills; its front matter is YAML for every name of the service and its
    plugins.
    """
    text = skill_file(snapshot.service.name, "http://localhost:8080", [*all_skills(snapshot)])
    start, front_text, body = text.split("---\n", 2)
    assert start == ""
    front_matter: Any = to_plain(parse_yaml(front_text, file="SKILL.md"))
    assert front_matter["name"] == "ada-s-home"
    assert "seer.look" in front_matter["description"]
    for skill in skills.values():
        assert f"### {skill['name']}\n" in body
        assert f"`{skill['call']['method']} {skill['call']['path']}`" in body
        assert skill["answer"] in body
    assert "\n# what it saw" not in body
    assert body.count("```") % 2 == 0


def test_no_secret_is_listed(snapshot: Snapshot, skills: dict[str, Any]) -> None:
    """The catalogue may be public."""
    text = skill_file(snapshot.service.name, "", [*all_skills(snapshot)])
    assert "canary" not in f"{skills}{text}"
