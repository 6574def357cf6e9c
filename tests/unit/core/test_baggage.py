"""A step claims baggage, inherits baggage, and cannot change what it inherits."""

from __future__ import annotations

import json

import pytest

from ductile.core.expressions.baggage import (
    MAX_BAGGAGE_BYTES,
    BaggageError,
    BaggageItem,
    add_baggage,
    compile_baggage,
    faults_in_baggage,
)
from ductile.core.expressions.paths import EvalContext
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue

SCOPE = EvalContext(
    payload={
        "id": 7,
        "user": {"name": "Ada", "tags": ["x"]},
        "none": None,
        "dots": {"a.b": 1},
        "branches": [{"id": "x", "n": 1}],
    },
    context={"origin": "web"},
)
INHERITED: JsonObject = {"customer": {"id": 7, "vip": True}, "note": "n", "list": [1], "empty": {}}


def claim_baggage(settings: dict[str, JsonValue], inherited: JsonObject | None = None) -> JsonObject:
    return add_baggage(compile_baggage(settings), inherited or {}, SCOPE)


@pytest.mark.parametrize(
    ("settings", "baggage"),
    [
        ({"id": "payload.id"}, {"id": 7}),
        (
            {"customer.id": "payload.id", "customer.name": "payload.user.name"},
            {"customer": {"id": 7, "name": "Ada"}},
        ),
        ({"none": "payload.none"}, {"none": None}),
        ({"built": "payload.branches.x.n", "first": "payload.branches.0.n"}, {"built": 1, "first": 1}),
        ({"was": "context.origin"}, {"was": "web"}),
        ({"all": "payload"}, {"all": SCOPE.payload}),
        ({"from": "payload.user", "namespace": "who"}, {"who": {"name": "Ada", "tags": ["x"]}}),
        ({"from": "payload.user", "namespace": "who.is"}, {"who": {"is": {"name": "Ada", "tags": ["x"]}}}),
        ({"from": "payload.dots", "namespace": "d"}, {"d": {"a.b": 1}}),
        ({}, {}),
    ],
)
def test_a_claim_keeps_a_value_under_its_path(settings: dict[str, JsonValue], baggage: JsonObject) -> None:
    assert claim_baggage(settings) == baggage


@pytest.mark.parametrize(
    "settings",
    [
        {"customer.id": "payload.id"},
        {"customer.name": "payload.user.name"},
        {"new": "payload.id"},
        {"empty.a": "payload.id"},
        {"from": "payload", "namespace": "customer"},
        {"from": "payload.user", "namespace": "empty"},
    ],
)
def test_repeating_a_value_and_adding_beside_it_is_fine(settings: dict[str, JsonValue]) -> None:
    baggage = claim_baggage(settings, INHERITED)
    assert (baggage["note"], baggage["list"]) == ("n", [1])
    customer = baggage["customer"]
    assert isinstance(customer, dict)
    assert (customer["id"], customer["vip"]) == (7, True)
    assert INHERITED == {"customer": {"id": 7, "vip": True}, "note": "n", "list": [1], "empty": {}}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"note": "payload.id"}, "note"),
        ({"customer": "payload.user"}, "customer"),
        ({"customer.id": "payload.user.name"}, "customer.id"),
        ({"customer.id.first": "payload.id"}, "customer.id"),
        ({"list.0": "payload.id"}, "list"),
        ({"list": "payload.user.tags"}, "list"),
        ({"customer.vip": "payload.id"}, "customer.vip"),
        ({"empty": "payload.id"}, "empty"),
        ({"from": "payload.user", "namespace": "note"}, "note"),
        ({"from": "payload.user", "namespace": "customer.id"}, "customer.id"),
    ],
)
def test_changing_what_was_inherited_fails_and_names_the_path(
    settings: dict[str, JsonValue], path: str
) -> None:
    """Inherited paths are immutable. A claim above or below such a path would change it too."""
    with pytest.raises(BaggageError, match=rf"^{path} is in the baggage") as excinfo:
        claim_baggage(settings, INHERITED)
    assert excinfo.value.path == path


def test_one_is_not_true_when_a_claim_is_repeated() -> None:
    """Values are compared as in conditions: strictly."""
    claims = (BaggageItem(target=("vip",), source="payload.vip"),)
    assert add_baggage(claims, {"vip": 1}, EvalContext(payload={"vip": 1.0})) == {"vip": 1}
    with pytest.raises(BaggageError):
        add_baggage(claims, {"vip": 1}, EvalContext(payload={"vip": True}))


def test_a_repeated_claim_keeps_the_first_value() -> None:
    """1 and 1.0 are equal, and later steps get the inherited value."""
    spread = (BaggageItem(target=("n",), source="payload", spread=True),)
    value = add_baggage(spread, {"n": {"a": 1}}, EvalContext(payload={"a": 1.0, "b": 2}))["n"]
    assert json.dumps(value, sort_keys=True) == '{"a": 1, "b": 2}'


def test_a_namespace_is_named_with_the_key_that_would_change() -> None:
    with pytest.raises(BaggageError, match=r"^who\.name is in the baggage"):
        claim_baggage({"from": "payload.user", "namespace": "who"}, {"who": {"name": "Bob"}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"a": "payload.gone"}, "there is no payload.gone to keep as a"),
        ({"a.b": "context.x.y"}, "there is no context.x.y to keep as a.b"),
        ({"from": "payload.id", "namespace": "n"}, "payload.id is not an object"),
        ({"from": "payload.none", "namespace": "n"}, "payload.none is not an object"),
    ],
)
def test_a_source_that_is_not_there_fails(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(BaggageError, match=words.replace(".", r"\.")):
        claim_baggage(settings)


@pytest.mark.parametrize(
    ("settings", "where", "words"),
    [
        ({"a": "paylod.x"}, ("a",), "begins with none of payload, context"),
        ({"a": "config.token"}, ("a",), "begins with none of payload, context"),
        ({"a": "{payload.x}"}, ("a",), "begins with none of payload, context"),
        ({"a": "payload..x"}, ("a",), "empty part"),
        ({"a": 5}, ("a",), "not a path"),
        ({"a": None}, ("a",), "not a path"),
        ({"a": {"b": "payload.x"}}, ("a",), "not a path"),
        ({"a..b": "payload.x"}, ("a..b",), "empty part"),
        ({"": "payload.x"}, ("",), "empty part"),
        ({"ductile_plugin": "payload.x"}, ("ductile_plugin",), "reserved"),
        ({"ductile_x.y": "payload.x"}, ("ductile_x.y",), "reserved"),
        ({"a.b": "payload.x", "a": "payload.y"}, ("a.b",), "within another path"),
        ({"from": "payload.x"}, (), "go together"),
        ({"namespace": "payload.x"}, (), "go together"),
        ({"from": "payload.x", "namespace": "n", "a": "payload.y"}, (), "go together"),
        ({"from": "x", "namespace": "n"}, ("from",), "begins with none"),
        ({"from": "payload.x", "namespace": 5}, ("namespace",), "not a name"),
        ({"from": "payload.x", "namespace": "ductile_n"}, ("namespace",), "reserved"),
    ],
)
def test_unreadable_baggage_is_reported_at_its_key(
    settings: dict[str, JsonValue], where: tuple[str, ...], words: str
) -> None:
    (fault,) = faults_in_baggage(settings)
    assert fault.where == where
    assert words in fault.message
    with pytest.raises(BaggageError):
        compile_baggage(settings)


def test_the_error_says_to_leave_out_the_braces() -> None:
    (fault,) = faults_in_baggage({"a": "{payload.x}"})
    assert fault.hint == "write the path without braces"


def test_the_baggage_has_a_largest_size_and_depth() -> None:
    """The limit is 1 MiB including the inherited baggage."""
    claims = (BaggageItem(target=("a",), source="payload.x"),)
    free_bytes = MAX_BAGGAGE_BYTES - len('{"b":1,"a":""}')
    assert add_baggage(claims, {"b": 1}, EvalContext(payload={"x": "x" * free_bytes}))["b"] == 1
    with pytest.raises(BaggageError, match="larger than"):
        add_baggage(claims, {"b": 1}, EvalContext(payload={"x": "x" * (free_bytes + 1)}))
    nested: JsonValue = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert add_baggage(claims, {}, EvalContext(payload={"x": nested})) == {"a": nested}
    with pytest.raises(BaggageError, match="deeper than"):
        add_baggage(claims, {}, EvalContext(payload={"x": [nested]}))


def test_a_large_namespace_is_added_in_one_go() -> None:
    """A copy for each name would take minutes within the transaction of the store."""
    many: JsonObject = {str(number): number for number in range(50_000)}
    spread = (BaggageItem(target=("n",), source="payload", spread=True),)
    baggage = add_baggage(spread, {"n": {"x": 1}}, EvalContext(payload=many))
    assert baggage == {"n": {**many, "x": 1}}
