"""Requests are decoded by the types of their fields; errors name the field and the expected value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from msgspec import Meta

from ductile.core.json import JsonObject
from ductile.errors import RefusedError, UsageError
from ductile.operations.request import (
    DryRun,
    FieldSource,
    decode_request,
    in_header,
    in_local_call,
    in_query,
    request_fields,
)
from ductile.struct import Value, about, field


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Example(Value):
    name: Annotated[str, about("A text.")]
    count: Annotated[int, Meta(ge=1, le=9, description="A number.")] = 5
    most: Annotated[int | None, about("A number, or none.")] = None
    colour: Annotated[
        Colour | None, Meta(description="A word.", extra={"aliases": {"crimson": Colour.RED}})
    ] = None
    since: Annotated[datetime | None, about("An instant.")] = field(name="from", default=None)
    span: Annotated[timedelta | None, about("A duration.")] = None
    payload: Annotated[dict[str, Any] | None, about("An object.")] = None
    wait: Annotated[bool, in_query("A flag.")] = False
    key: Annotated[str | None, in_header("X-Key", "A header.")] = None
    secret: Annotated[str | None, in_local_call("Only set by other operations.")] = None
    dry_run: DryRun = False


def when() -> tuple[datetime, ZoneInfo]:
    return datetime(2026, 2, 8, 12, tzinfo=UTC), ZoneInfo("Europe/Vienna")


def test_an_instant_is_relative_to_now_in_the_zone() -> None:
    assert decode_request(Example, {"name": "x", "from": "yesterday"}, when).since == datetime(
        2026, 2, 6, 23, tzinfo=UTC
    )


def test_a_request_is_decoded_by_the_types_of_its_fields() -> None:
    values: JsonObject = {
        "name": "x",
        "count": 9,
        "colour": "crimson",
        "from": "2026-02-08T00:00:00Z",
        "span": "5m",
        "payload": {"a": 1},
        "wait": True,
        "unknown": 1,
    }
    assert decode_request(Example, values, when) == Example(
        name="x",
        count=9,
        colour=Colour.RED,
        since=datetime(2026, 2, 8, tzinfo=UTC),
        span=timedelta(minutes=5),
        payload={"a": 1},
        wait=True,
    )


def test_null_means_the_default() -> None:
    assert decode_request(Example, {"name": "x", "count": None, "from": None}, when) == Example(name="x")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({}, RefusedError, "name is missing"),
        ({"name": 1}, RefusedError, "name has to be text"),
        ({"name": "x", "payload": []}, RefusedError, "payload has to be a JSON object"),
        ({"name": "x", "dry_run": "yes"}, RefusedError, "dry_run has to be true or false"),
        ({"name": "x", "dry_run": None}, RefusedError, "dry_run has to be true or false"),
        ({"name": "x", "count": 10}, UsageError, "count has to be a whole number from 1 to 9"),
        ({"name": "x", "count": True}, UsageError, "count has to be a whole number from 1 to 9"),
        ({"name": "x", "colour": "green"}, UsageError, "colour: unknown value 'green'"),
        ({"name": "x", "from": "once"}, UsageError, "from: 'once' is not a time"),
        ({"name": "x", "from": "2026-02-30"}, UsageError, "is not a time"),
        ({"name": "x", "span": "soon"}, UsageError, "span: "),
    ],
)
def test_an_error_names_the_field(values: JsonObject, error: type[Exception], message: str) -> None:
    """A wrong type is refused (422); a text that cannot be parsed is a usage error (400)."""
    with pytest.raises(error, match=message) as excinfo:
        decode_request(Example, values, when)
    raised_error: Any = excinfo.value
    assert raised_error.details["field"] in (*values, "name")


def test_fields_have_a_schema_and_a_source() -> None:
    """The HTTP parameters, the OpenAPI document and the CLI options derive from the schema and the source."""
    fields = request_fields(Example)
    assert fields["name"].required
    assert fields["count"].schema == {"type": "integer", "minimum": 1, "maximum": 9}
    assert fields["colour"].schema == {"type": ["string", "null"], "enum": ["red", "blue", "crimson"]}
    assert fields["from"].schema == {"type": ["string", "null"]}
    assert (fields["from"].attribute, fields["from"].description) == ("since", "An instant.")
    sources = {name: field.source for name, field in fields.items() if field.source is not None}
    assert sources == {"wait": FieldSource.QUERY, "key": FieldSource.HEADER, "secret": FieldSource.LOCAL}
    assert fields["key"].header == "X-Key"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("most", "7", 7),
        ("wait", "", True),
        ("wait", "no", False),
        ("name", "1", "1"),
    ],
)
def test_texts_of_a_query_are_read_by_type(name: str, text: str, value: object) -> None:
    assert request_fields(Example)[name].parse_text(text) == value


@pytest.mark.parametrize(("name", "text"), [("count", "many"), ("count", "1" * 19), ("wait", "perhaps")])
def test_a_text_that_is_none_of_its_type_is_a_usage_error(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        request_fields(Example)[name].parse_text(text)
