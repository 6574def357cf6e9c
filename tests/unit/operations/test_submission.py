"""Trace contexts and schemas of submissions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.operations.submission import parse_trace_id
from ductile.protocol.manifest.schema import UnusableSchemaError, find_schema_violations

HEX = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(HEX)
def test_a_trace_id_is_taken_from_a_traceparent(trace: str) -> None:
    """The header is that of W3C Trace Context; an id of zeros is no trace."""
    trace_id = parse_trace_id(f"00-{trace}-00f067aa0ba902b7-01")
    assert trace_id == (None if trace == "0" * 32 else trace)


@given(st.text(max_size=80))
def test_anything_else_is_no_trace_and_no_fault(text: str) -> None:
    """A malformed header counts as absent."""
    trace_id = parse_trace_id(text)
    assert trace_id is None or len(trace_id) == 32


def test_a_fault_names_the_field_and_not_its_value() -> None:
    """The value may be a secret."""
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"maxLength": 3}}}}
    (fault,) = find_schema_violations({"items": ["ok", "canary-value"]}, schema)  # type: ignore[arg-type]  # plain JSON
    assert fault.field == "payload.items[1]"
    assert "canary" not in fault.message


def test_a_schema_that_reaches_outside_is_refused() -> None:
    """Checking a payload opens no file and no connection."""
    for reference in ("http://127.0.0.1:1/schema.json", "file:///etc/passwd"):
        with pytest.raises(UnusableSchemaError):
            find_schema_violations({}, {"$ref": reference})
    with pytest.raises(UnusableSchemaError):
        find_schema_violations({}, {"type": "no such type"})


def test_a_pattern_cannot_hold_up_the_daemon() -> None:
    """A regular expression that would take for ever fails the field instead."""
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a|aa)+(?=b)$"}}}
    assert find_schema_violations({"a": "a" * 60 + "!"}, schema)  # type: ignore[arg-type]  # plain JSON
