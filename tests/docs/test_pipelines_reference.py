"""The page on pipelines agrees with the program, and its examples run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from builders.conditions import evaluate
from builders.configs import a_config, loaded
from builders.plugins import a_plugin
from ductile.config.schema.fields import Section
from ductile.config.schema.pipelines import PipelineSettings, StepSettings
from ductile.core.expressions.conditions import MASK, MAX_QUOTE_LENGTH, PathComparison, explain_condition
from ductile.core.expressions.operators import Operator, compare
from ductile.core.expressions.paths import MISSING, PORTABLE_ROOTS, EvalContext, Root
from ductile.core.expressions.regex import BUDGET_SECONDS
from ductile.core.expressions.templates import compile_template, fill
from ductile.core.json import JsonObject, JsonValue
from ductile.offline import run_offline

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pipelines.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
OPERATORS = re.findall(
    r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| (does not hold|counts as `null`) \|$", PAGE, re.MULTILINE
)
TEMPLATES = re.findall(r"^\| `([^|]*\{payload[^|]*)` \| `([^|]+)` \|$", PAGE, re.MULTILINE)


#: An order with the fields of every example.
ORDER: JsonObject = {
    "id": 7,
    "total": 150,
    "urgent": True,
    "status": "new",
    "customer": {"email": "ada@example.org", "name": "Ada", "plan": "free"},
    "shipment": {"carrier": "post"},
}
#: Emits an event with its payload.
FORWARDING_PLUGIN = """#!/usr/bin/env python3
import json, sys

request = json.load(sys.stdin)
payload = request.get("payload") or request.get("event", {}).get("payload", {})
events = [{"type": "shop.refused", "payload": payload}] if payload else []
json.dump({"status": "ok", "result": "done", "events": events}, sys.stdout)
"""


def a_page_s_config(directory: Path, example: str) -> list[str]:
    """Write a configuration with the example; return the names of its pipelines."""
    for plugin in ("mail", "shop"):
        a_plugin(directory / "plugins", plugin, script=FORWARDING_PLUGIN)
    config = a_config(directory, f"plugins: {{mail: {{}}, shop: {{}}}}\n{example}")
    return [pipeline.name for pipeline in loaded(config).model.pipelines]


@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_example_runs(example: str, tmp_path: Path) -> None:
    """Each pipeline of an example, started by name with the same order, succeeds."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    names = a_page_s_config(tmp_path, example)
    assert names
    for name in names:
        request: JsonObject = {"pipeline": name, "payload": ORDER}
        run = (await run_offline(str(tmp_path), environ, "pipeline.run", request)).job
        assert (run["status"], run["last_error"]) == ("succeeded", None), name


@pytest.mark.parametrize(
    ("title", "settings"),
    [("a pipeline", PipelineSettings), ("a step", StepSettings)],
    ids=["pipeline", "step"],
)
def test_every_key_has_an_example_under_its_name(title: str, settings: type[Section]) -> None:
    """The page has no key that does not exist."""
    section = re.search(rf"^## Keys of {title}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    subsections = re.findall(
        r"^### (?:step )?`([\w-]+)`\n(.*?)(?=^### |\Z)", section[1], re.MULTILINE | re.DOTALL
    )
    keys = [field.encode_name for field in msgspec.structs.fields(settings)]
    assert sorted(name for name, _ in subsections) == sorted(keys)
    for name, text in subsections:
        example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
        assert example is not None, name
        assert f"{name}:" in example[1], name


def test_every_operator_is_there() -> None:
    assert [name for name, _, _ in OPERATORS] == [op.value for op in Operator]


@pytest.mark.parametrize(("name", "missing"), [(name, missing) for name, _, missing in OPERATORS])
def test_a_missing_path_means_what_the_table_says(name: str, missing: str) -> None:
    op = Operator(name)
    if missing == "does not hold":
        values: list[JsonValue] = [True, None, 0, "", ".*", [None]]
        assert not any(compare(MISSING, op, value) for value in values)
    else:
        values = [None, "a", [None], ["a"]]
        for value in values:
            assert compare(MISSING, op, value) is compare(None, op, value)


def test_every_root_is_documented_with_its_portability() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| yes \| (yes|no)", PAGE, re.MULTILINE)
    assert rows == [(root.value, "yes" if root in PORTABLE_ROOTS else "no") for root in Root]


@pytest.mark.parametrize(("template", "expected"), TEMPLATES)
def test_a_template_makes_what_the_table_says(template: str, expected: str) -> None:
    (payload,) = re.findall(r"With the payload `(.+)`:", PAGE)
    assert fill(compile_template(template), EvalContext(payload=json.loads(payload))) == json.loads(expected)


def test_there_are_templates_in_the_table() -> None:
    assert len(TEMPLATES) == 7


def test_the_documented_sentence_is_the_message() -> None:
    condition = PathComparison(path="payload.total", op=Operator.GTE, value=100)
    assert explain_condition(evaluate(condition, EvalContext(payload={"total": 35}))) in PAGE


def test_the_limits_are_the_program_s() -> None:
    assert f"may compute for {BUDGET_SECONDS} s" in PAGE
    assert f"cut to {MAX_QUOTE_LENGTH} characters" in PAGE
    assert f"`{MASK}`" in PAGE
