"""Laws of templates over all texts and values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.conditions import json_values, paths, scopes
from ductile.core.expressions.operators import json_equal
from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.expressions.templates import (
    TemplateError,
    compile_template,
    faults_in_template,
    fill,
)
from ductile.core.json import JsonValue

texts = st.text("ab{}.", max_size=12) | st.text(max_size=12)
carried = paths(("payload", "context"))


def escape_template(text: str) -> str:
    """Return the template whose result is this text."""
    return text.replace("{", "{{").replace("}", "}}")


@given(texts, scopes)
def test_an_escaped_text_gives_itself(text: str, scope: EvalContext) -> None:
    assert fill(compile_template(escape_template(text)), scope) == text


@given(
    st.recursive(
        texts | json_values, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=6
    )
)
def test_compiling_fails_exactly_where_a_fault_is_reported(value: JsonValue) -> None:
    faults = list(faults_in_template(value))
    if faults:
        with pytest.raises(TemplateError) as excinfo:
            compile_template(value)
        assert excinfo.value.where == faults[0].where
    else:
        compile_template(value)


@given(json_values, scopes)
def test_text_without_references_stays_as_it_is(value: JsonValue, scope: EvalContext) -> None:
    assert json_equal(fill(compile_template(value), scope), value)


@given(carried, scopes, texts, texts)
def test_a_reference_gives_what_is_there_or_fails(
    path: str, scope: EvalContext, before: str, after: str
) -> None:
    value = look_up(path, scope)
    template_source: JsonValue = {
        "alone": f"{{{path}}}",
        "mixed": [f"{escape_template(before)}{{{path}}}{escape_template(after)}"],
    }
    template = compile_template(template_source)
    if value is MISSING:
        with pytest.raises(TemplateError, match=f"there is no {path},"):
            fill(template, scope)
        return
    result = fill(template, scope)
    assert isinstance(result, dict)
    assert json_equal(result["alone"], value)
    value_text = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )
    expected = value if before == after == "" else f"{before}{value_text}{after}"
    assert json_equal(result["mixed"], [expected])
