"""The results of `with` templates, and faults of templates."""

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
    ("template", "expected"),
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
def test_a_lone_reference_keeps_its_type_and_mixed_text_is_text(
    template: JsonValue, expected: JsonValue
) -> None:
    """Keys are literal; doubled braces are braces."""
    result = fill(compile_template(template), SCOPE)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("template", "words"),
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
def test_an_unreadable_template_is_reported_with_its_position(template: str, words: str) -> None:
    (fault,) = faults_in_template({"a": [template]})
    assert fault.where == ("a", 0)
    assert fault.message.startswith(words)
    assert fault.hint is not None
    with pytest.raises(TemplateError, match=r"in with\.a\[0\]") as excinfo:
        compile_template({"a": [template]})
    assert excinfo.value.where == ("a", 0)


def test_every_fault_of_a_template_is_reported() -> None:
    faults = list(faults_in_template({"a": "{x} and {", "b": [1, "fine", {"c": "}"}]}))
    assert [fault.where for fault in faults] == [("a",), ("a",), ("b", 2, "c")]


@pytest.mark.parametrize("path", ["payload.gone", "payload.name.first", "payload.list.2", "context.x.y"])
@pytest.mark.parametrize("prefix", ["", "Dear "])
def test_a_missing_path_fails_and_names_the_path_and_the_key(path: str, prefix: str) -> None:
    """A missing path fails the job."""
    template = compile_template({"to": {"who": f"{prefix}{{{path}}}"}})
    with pytest.raises(TemplateError, match=rf"there is no {path}, which with\.to\.who refers to") as excinfo:
        fill(template, SCOPE)
    assert excinfo.value.where == ("to", "who")


@pytest.mark.parametrize(
    ("payload", "path", "ending"),
    [
        ({"result": 1, "exit_code": 0}, "payload.size", "refers to; payload has result, exit_code"),
        ({"b": [{"id": "x", "n": 1}]}, "payload.b.x.result", "refers to; payload.b.x has id, n"),
        ({"a": {"b": {}}, "c": 1}, "payload.a.gone.more", "refers to; payload.a has b"),
        ({"a": "text"}, "payload.a.b", "refers to"),
        ({}, "payload.a", "refers to"),
        ({str(number) * 50: number for number in range(9)}, "payload.a", f", {'7' * 40} and 1 more"),
    ],
)
def test_a_missing_path_fails_with_what_there_is(payload: dict[str, object], path: str, ending: str) -> None:
    """The error lists a few shortened names beside the path, without values, which may be secret."""
    template = compile_template({"to": f"{{{path}}}"})
    with pytest.raises(TemplateError) as excinfo:
        fill(template, replace(SCOPE, payload=payload))
    assert str(excinfo.value).endswith(ending)


def test_the_result_of_a_template_has_a_largest_size() -> None:
    """The limit is 1 MiB as JSON, to the byte."""
    template = compile_template({"a": "{payload.x}"})
    free_bytes = MAX_FILLED_BYTES - len('{"a":""}')
    assert fill(template, EvalContext(payload={"x": "x" * free_bytes})) == {"a": "x" * free_bytes}
    with pytest.raises(TemplateError, match="larger than"):
        fill(template, EvalContext(payload={"x": "x" * (free_bytes + 1)}))
    with pytest.raises(TemplateError, match="larger than"):
        fill(template, EvalContext(payload={"x": "é" * (free_bytes // 2 + 1)}))


@pytest.mark.parametrize("written_template", ["{payload.x}" * 50, ["{payload.x}"] * 50, ["x {payload}"] * 50])
def test_a_template_that_repeats_a_large_value_fails_before_it_is_written_out(
    written_template: JsonValue,
) -> None:
    """The result is never complete in memory within the transaction of the store."""
    template, scope = (
        compile_template(written_template),
        EvalContext(payload={"x": "x" * (MAX_FILLED_BYTES - 100)}),
    )
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match="larger than"):
            fill(template, scope)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MAX_FILLED_BYTES


def test_the_result_of_a_template_has_a_greatest_depth() -> None:
    nested: JsonValue = "bottom"
    for _ in range(MAX_DEPTH):
        nested = [nested]
    scope = EvalContext(payload={"x": nested})
    assert fill(compile_template(["{payload.x}"]), scope) == [nested]
    with pytest.raises(TemplateError, match="deeper than"):
        fill(compile_template([["{payload.x}"]]), scope)
