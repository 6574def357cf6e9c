"""What `with` makes of payload and context, and what is wrong with a template."""

from __future__ import annotations

import tracemalloc

import pytest

from ductile.core.expressions.paths import EvalContext
from ductile.core.expressions.templates import (
    MAX_FILLED_BYTES,
    TemplateError,
    compile_template,
    faults_in_template,
    fill,
)
from ductile.core.json import MAX_DEPTH, JsonValue
from ductile.struct import replace

SCOPE = EvalContext(
    payload={
        "name": "Ada",
        "n": 3,
        "big": 2**60 + 1,
        "on": True,
        "null": None,
        "list": [1, {"a": "é"}],
        "f": 1.5,
        "branches": [{"id": "build", "payload": {"x": 9}}],
    },
    context={"customer": {"id": 7}},
    config={"token": "hunter2"},
)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{payload.name}", "Ada"),
        ("{payload.n}", 3),
        ("{payload.big}", 2**60 + 1),
        ("{payload.on}", True),
        ("{payload.null}", None),
        ("{payload.list}", [1, {"a": "é"}]),
        ("{payload.list.1.a}", "é"),
        ("{payload.branches.0.payload.x}", 9),
        ("{payload.branches.build.payload.x}", 9),
        ("{context.customer}", {"id": 7}),
        ("{context}", {"customer": {"id": 7}}),
        (" {payload.n}", " 3"),
        ("{payload.n}{payload.n}", "33"),
        ("Dear {payload.name}, no. {context.customer.id}", "Dear Ada, no. 7"),
        ("{payload.on} {payload.null} {payload.f}", "true null 1.5"),
        ("is {payload.list}", 'is [1,{"a":"é"}]'),
        ("{{payload.n}}", "{payload.n}"),
        ("{{{payload.n}}}", "{3}"),
        ("{{", "{"),
        ("}}{{", "}{"),
        ('{{"a": {payload.n}}}', '{"a": 3}'),
        (5, 5),
        (None, None),
        (["{payload.n}", {"{payload.n}": "{payload.name}!"}], [3, {"{payload.n}": "Ada!"}]),
        ({}, {}),
    ],
)
def test_a_lone_reference_keeps_its_type_and_mixed_text_is_text(written: JsonValue, made: JsonValue) -> None:
    """Keys are literal; doubled braces are braces."""
    filled = fill(compile_template(written), SCOPE)
    assert filled == made
    assert type(filled) is type(made)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("a {payload.n", "a { at character 3 has no partner"),
        ("a } b", "a } at character 3 has no partner"),
        ("{payload.n}}", "a } at character 12 has no partner"),
        ("{a{payload.n}", "a { at character 1 has no partner"),
        ("{}", "the reference at character 1 is empty"),
        ("x{paylod.n}", "the reference at character 2 begins with none of payload, context"),
        ("{config.token}", "the reference at character 1 begins with none of payload, context"),
        ("{event.type}", "the reference at character 1 begins with none of payload, context"),
        ('{"a": 1}', "the reference at character 1 begins with none of payload, context"),
        ("{payload.}", "the reference at character 1 has an empty part"),
        ("{payload..n}", "the reference at character 1 has an empty part"),
        ("{ payload.n }", "the reference at character 1 begins with none of"),
        ("{payload.n }", "the reference at character 1 has an empty part, or space around it"),
    ],
)
def test_an_unreadable_template_is_reported_with_its_position(written: str, words: str) -> None:
    (fault,) = faults_in_template({"a": [written]})
    assert fault.where == ("a", 0)
    assert fault.message.startswith(words)
    assert fault.hint is not None
    with pytest.raises(TemplateError, match=r"in with\.a\[0\]") as failed:
        compile_template({"a": [written]})
    assert failed.value.where == ("a", 0)


def test_every_fault_of_a_template_is_reported() -> None:
    faults = list(faults_in_template({"a": "{x} and {", "b": [1, "fine", {"c": "}"}]}))
    assert [fault.where for fault in faults] == [("a",), ("a",), ("b", 2, "c")]


@pytest.mark.parametrize("path", ["payload.gone", "payload.name.first", "payload.list.2", "context.x.y"])
@pytest.mark.parametrize("around", ["", "Dear "])
def test_a_missing_path_fails_and_names_the_path_and_the_key(path: str, around: str) -> None:
    """A missing path fails the job."""
    template = compile_template({"to": {"who": f"{around}{{{path}}}"}})
    with pytest.raises(TemplateError, match=rf"there is no {path}, which with\.to\.who refers to") as failed:
        fill(template, SCOPE)
    assert failed.value.where == ("to", "who")


@pytest.mark.parametrize(
    ("payload", "path", "said"),
    [
        ({"result": 1, "exit_code": 0}, "payload.size", "refers to; payload has result, exit_code"),
        ({"b": [{"id": "x", "n": 1}]}, "payload.b.x.result", "refers to; payload.b.x has id, n"),
        ({"a": {"b": {}}, "c": 1}, "payload.a.gone.more", "refers to; payload.a has b"),
        ({"a": "text"}, "payload.a.b", "refers to"),
        ({}, "payload.a", "refers to"),
        ({str(at) * 50: at for at in range(9)}, "payload.a", f", {'7' * 40} and 1 more"),
    ],
)
def test_a_missing_path_fails_with_what_there_is(payload: dict[str, object], path: str, said: str) -> None:
    """The names beside it, a few and none too long, and no values: those may be secret."""
    template = compile_template({"to": f"{{{path}}}"})
    with pytest.raises(TemplateError) as failed:
        fill(template, replace(SCOPE, payload=payload))
    assert str(failed.value).endswith(said)


def test_the_result_of_a_template_has_a_largest_size() -> None:
    """1 MiB as JSON, to the byte."""
    template = compile_template({"a": "{payload.x}"})
    room = MAX_FILLED_BYTES - len('{"a":""}')
    assert fill(template, EvalContext(payload={"x": "x" * room})) == {"a": "x" * room}
    with pytest.raises(TemplateError, match="larger than"):
        fill(template, EvalContext(payload={"x": "x" * (room + 1)}))
    with pytest.raises(TemplateError, match="larger than"):
        fill(template, EvalContext(payload={"x": "é" * (room // 2 + 1)}))


@pytest.mark.parametrize("written", ["{payload.x}" * 50, ["{payload.x}"] * 50, ["x {payload}"] * 50])
def test_a_template_that_repeats_a_large_value_fails_before_it_is_written_out(written: JsonValue) -> None:
    """However many references a template has, the store's transaction never holds it all in memory."""
    template, scope = compile_template(written), EvalContext(payload={"x": "x" * (MAX_FILLED_BYTES - 100)})
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match="larger than"):
            fill(template, scope)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MAX_FILLED_BYTES


def test_the_result_of_a_template_has_a_greatest_depth() -> None:
    deep: JsonValue = "bottom"
    for _ in range(MAX_DEPTH):
        deep = [deep]
    scope = EvalContext(payload={"x": deep})
    assert fill(compile_template(["{payload.x}"]), scope) == [deep]
    with pytest.raises(TemplateError, match="deeper than"):
        fill(compile_template([["{payload.x}"]]), scope)
