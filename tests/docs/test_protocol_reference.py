"""docs/reference/protocol.md is complete, and its examples are valid."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ductile.config.snapshot import COMMAND_TIMEOUTS, OTHER_TIMEOUT
from ductile.core.jobs.model import PluginResponse
from ductile.protocol.plugin_messages import (
    MAX_DEPTH,
    DecodedResponse,
    PluginRequest,
    ProtocolViolation,
    RequestEvent,
    decode_response,
    encode_request,
)
from ductile.runner.port import (
    ALLOWED_PREFIXES,
    ALLOWED_VARIABLES,
    MAX_STDERR,
    MAX_STDOUT,
    GracePeriods,
    job_variables,
)

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "protocol.md").read_text(encoding="utf-8")
WARM_START = (DOCS / "explanation" / "warm-start.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```\w+ {kind}\n(.*?)^```$", REFERENCE, re.DOTALL | re.MULTILINE)


def rows(text: str) -> list[str]:
    """Return the first cells of the tables in a part of the page, as far as they are code."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def section(title: str) -> str:
    return REFERENCE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def a_full_request() -> dict[str, Any]:
    now = datetime(2026, 2, 8, 10, tzinfo=UTC)
    event = RequestEvent(
        type="t", payload={}, source="s", timestamp=now, event_id="e", dedupe_key="k", headers={}
    )
    request = PluginRequest(
        job_id="j",
        command="handle",
        instance="i",
        config={},
        state={},
        context={},
        deadline_at=now,
        payload={},
        event=event,
    )
    body: dict[str, Any] = json.loads(encode_request(request))
    return body


def test_every_field_of_a_request_has_a_row_and_is_in_the_example() -> None:
    """Every sent field is documented, and every documented one is sent."""
    request = a_full_request()
    assert rows(section("The request")) == [*request, *request["event"]]
    example = json.loads(blocks("request")[0])
    assert list(example) == list(request)
    assert list(example["event"]) == list(request["event"])


def test_every_field_of_a_response_has_a_row() -> None:
    """The rows are the fields of the decoded response, `status` and `logs`."""
    fields = (set(PluginResponse.__struct_fields__) - {"ok"}) | {"status", "logs"}
    assert set(rows(section("The response"))) == fields


@pytest.mark.parametrize("example", blocks("response"))
def test_the_responses_shown_are_valid(example: str) -> None:
    assert isinstance(decode_response(example.encode()), DecodedResponse)


@pytest.mark.parametrize("line", blocks("faults")[0].splitlines())
def test_the_violations_shown_are_violations(line: str) -> None:
    """Each line is a violation, the empty one too."""
    assert isinstance(decode_response(line.encode()), ProtocolViolation)


def test_the_environment_is_listed() -> None:
    """The page lists every variable of a plugin's environment, and no other."""
    arguments = {"job_id": "j", "plugin": "p", "command": "c", "data_dir": "/d", "trace_id": "t"}
    variables = job_variables(store_id="s", daemon="h:1:2", attempt=1, **arguments)
    documented = set(
        re.findall(r"`([A-Z_]+\*?)`", REFERENCE.partition("### Environment")[2].partition("###")[0])
    )
    assert documented == {*ALLOWED_VARIABLES, *(f"{prefix}*" for prefix in ALLOWED_PREFIXES), *variables}


def test_the_numbers_are_those_of_the_code() -> None:
    """The page has the limits, grace periods and timeouts of the code."""
    assert f"more than {MAX_STDOUT // 2**20} MiB" in REFERENCE
    assert f"up to {MAX_STDERR // 2**10} KiB" in REFERENCE
    assert f"nested more than {MAX_DEPTH} deep" in REFERENCE
    assert f"SIGKILL {GracePeriods().after_terminate:g} seconds later" in REFERENCE
    assert GracePeriods().for_group_members == pytest.approx(0.5), "the page says half a second"
    timeouts = dict(re.findall(r"^\| `?(\w+)`? \| (\d+) s \|$", REFERENCE, re.MULTILINE))
    expected = {**COMMAND_TIMEOUTS, "others": OTHER_TIMEOUT}
    assert timeouts == {name: f"{span.total_seconds():g}" for name, span in expected.items()}


def test_every_difference_of_a_warm_start_is_documented() -> None:
    """The comparison of cold and warm ignores only the documented differences."""
    script = Path(__file__).parents[1] / "contract" / "runner" / "surroundings.txt"
    ignored = re.findall(r'"DIFFERS ([^"]+)"', script.read_text(encoding="utf-8"))
    documented = re.findall(r"^\| ([a-z][^|]*) \|", WARM_START, re.MULTILINE)
    assert documented == [*ignored, "finalisers", "hash seed"]
