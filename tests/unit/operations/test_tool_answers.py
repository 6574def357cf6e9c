"""Answers of tools stay within their size and name what was left out."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ductile.operations.tools.answers import compact, shorten
from ductile.operations.tools.table import TOOLS, operation_of
from ductile.struct import Value


class _Execution(Value):
    job_id: str
    text: str


class _Job(Value):
    job_id: str
    text: str
    executions: list[_Execution]


_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3000)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=20), inner, max_size=20),
)


@given(document=st.dictionaries(st.text("abc", min_size=1, max_size=3), _JSON, max_size=5))
def test_what_fits_is_not_changed(document: dict[str, Any]) -> None:
    """A document that fits is neither cut nor marked."""
    before = copy.deepcopy(document)
    assert shorten(document, 10_000_000) == before


@given(rows=st.integers(0, 400), text=st.integers(0, 5000))
def test_long_lists_and_texts_are_cut_and_named(rows: int, text: int) -> None:
    """The size holds, the beginning is kept, and each cut names the original length."""
    document: dict[str, Any] = {"id": 7, "rows": [{"n": number, "why": "x" * text} for number in range(rows)]}
    size = len(msgspec.json.encode(document))
    answer = shorten(document, 5000)
    assert len(msgspec.json.encode(answer)) <= 5000
    assert answer["id"] == 7
    assert ("left_out" in answer) == (size > 5000)
    kept_rows: Any = answer["rows"]
    assert [row["n"] for row in kept_rows] == list(range(len(kept_rows)))
    if len(kept_rows) < rows:
        assert f"rows: {len(kept_rows)} of {rows} entries" in answer["left_out"]  # type: ignore[operator]


def test_nulls_of_structs_are_left_out_and_those_of_plugins_kept() -> None:
    """A null in the JSON of a plugin is a value of the plugin."""

    class _Response(Value):
        payload: dict[str, Any]
        error: str | None = None

    assert compact(_Response(payload={"a": None})) == {"payload": {"a": None}}


def test_names_are_left_out_everywhere_or_below_a_field_only() -> None:
    job = _Job(job_id="a", text="b", executions=[_Execution(job_id="a", text="c")])
    omitted_below = {"executions": frozenset({"job_id"})}
    assert compact(job, frozenset({"text"}), omitted_below) == {"job_id": "a", "executions": [{}]}
    assert compact(job, omit_below=omitted_below) == {
        "job_id": "a",
        "text": "b",
        "executions": [{"text": "c"}],
    }


def test_every_tool_has_an_operation() -> None:
    """The table names operations and fields that exist."""
    for row in TOOLS.values():
        fields = operation_of(row).fields
        assert {*row.fixed, *row.required} <= set(fields)
