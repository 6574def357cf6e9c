"""Laws of templates over all texts and values (SPEC 7.4)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.conditions import json_values, paths, scopes
from ductile.core.equality import same
from ductile.core.json_values import JsonValue
from ductile.core.references import MISSING, Scope, find
from ductile.core.templates import TemplateError, compile_template, escape, faults_in_template, fill

texts = st.text("ab{}.", max_size=12) | st.text(max_size=12)
carried = paths(("payload", "context"))


@given(texts, scopes)
def test_an_escaped_text_gives_itself(text: str, scope: Scope) -> None:
    assert fill(compile_template(escape(text)), scope) == text


@given(
    st.recursive(
        texts | json_values, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=6
    )
)
def test_compiling_fails_exactly_where_a_fault_is_told(value: JsonValue) -> None:
    faults = list(faults_in_template(value))
    if faults:
        with pytest.raises(TemplateError) as failed:
            compile_template(value)
        assert failed.value.where == faults[0].where
    else:
        compile_template(value)


@given(json_values, scopes)
def test_what_refers_to_nothing_stays_as_it_is(value: JsonValue, scope: Scope) -> None:
    assert same(fill(compile_template(value), scope), value)


@given(carried, scopes, texts, texts)
def test_a_reference_gives_what_is_there_or_fails(path: str, scope: Scope, before: str, after: str) -> None:
    found = find(path, scope)
    written: JsonValue = {"alone": f"{{{path}}}", "mixed": [f"{escape(before)}{{{path}}}{escape(after)}"]}
    template = compile_template(written)
    if found is MISSING:
        with pytest.raises(TemplateError, match=f"there is no {path},"):
            fill(template, scope)
        return
    filled = fill(template, scope)
    assert isinstance(filled, dict)
    assert same(filled["alone"], found)
    shown = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    expected = found if before == after == "" else f"{before}{shown}{after}"
    assert same(filled["mixed"], [expected])
