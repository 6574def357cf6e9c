"""Named SQL files are shared by all databases; an adapter can override queries."""

from __future__ import annotations

import re

import pytest

from ductile.store.named_sql import load_queries, parse_queries


def test_a_query_is_what_follows_its_name_without_comments() -> None:
    text = (
        "-- about the file\n\n-- name: one\n-- says what it does\nSELECT 1\n  -- inside\nFROM t\n\n"
        "-- name: two\nSELECT 2\n"
    )
    assert parse_queries(text) == {"one": "SELECT 1\nFROM t", "two": "SELECT 2"}


def test_fragments_are_included_and_are_no_queries() -> None:
    text = "-- fragment: columns\na, b\n-- name: one\nSELECT {columns} FROM t WHERE x IN ({columns})\n"
    assert parse_queries(text) == {"one": "SELECT a, b FROM t WHERE x IN (a, b)"}


def test_an_unknown_fragment_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        parse_queries("-- name: one\nSELECT {nothing}")


def test_a_name_is_defined_once() -> None:
    with pytest.raises(ValueError, match="one is defined twice"):
        parse_queries("-- name: one\nSELECT 1\n-- name: one\nSELECT 2\n")


def test_an_adapter_replaces_queries_and_fragments_and_adds_its_own() -> None:
    shared = "-- fragment: hint\n-- name: one\nSELECT 1 {hint}\n-- name: two\nSELECT 2\n"
    own = "-- fragment: hint\nINDEXED BY i\n-- name: two\nSELECT 22\n-- name: three\nSELECT 3\n"
    assert parse_queries(shared)["one"] == "SELECT 1 "
    assert parse_queries(shared, own) == {
        "one": "SELECT 1 INDEXED BY i",
        "two": "SELECT 22",
        "three": "SELECT 3",
    }


def test_text_without_queries_has_none() -> None:
    assert parse_queries("-- only a comment\n") == {}


def test_our_queries_load_and_each_is_one_statement() -> None:
    queries = load_queries("ductile.store.sqlite")
    assert len(queries) > 50
    for name, sql in queries.items():
        assert sql, name
        assert ";" not in sql, name
        assert not re.search(r"\{[a-z_]+\}", sql), f"{name} includes a fragment that was not filled in"
