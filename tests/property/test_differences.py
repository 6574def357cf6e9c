"""Differences between a good and a bad run: none between equal runs, and never the value of a secret."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START, a_log_row
from ductile.operations.diagnose.differences import compare_configs, compare_executions, compare_inputs
from ductile.store.model.maintenance import ConfigOrigin, ConfigRecord

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=4)


def a_record(name: str, settings: Any) -> ConfigRecord:
    return ConfigRecord(
        seq=1,
        hash=name,
        origin=ConfigOrigin.START,
        content={"plugins": {"echo": settings}},
        loaded_at=START,
    )


@given(objects)
def test_the_same_input_differs_in_nothing(given_input: dict[str, Any]) -> None:
    assert list(compare_inputs(given_input, dict(given_input))) == []


@given(objects, objects)
def test_inputs_differ_by_key_and_no_value_is_shown(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A payload may contain secrets, so only the keys are named."""
    differences = list(compare_inputs(before, after))
    missing = object()
    changed = {
        f"payload.{key}"
        for key in before.keys() | after.keys()
        if before.get(key, missing) != after.get(key, missing)
    }
    assert {difference.what for difference in differences} == changed
    words = {word for difference in differences for word in (difference.good, difference.now)}
    assert words <= {"given", "a value", "another value", None}


@given(objects, objects)
def test_a_changed_configuration_is_never_passed_over(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A change of a secret or of plugin files, which the contents do not show, is reported too."""
    differences = list(compare_configs(a_record("a", before), a_record("b", after), ["echo"]))
    assert differences
    assert list(compare_configs(a_record("a", before), a_record("a", after), ["echo"])) == []
    if before == after:
        assert [difference.what for difference in differences] == ["configuration or plugin files"]


def test_runs_are_compared_by_what_the_log_has() -> None:
    good_run = a_log_row(stderr="warming up\nmore")
    assert list(compare_executions(good_run, good_run)) == []
    bad_run = a_log_row(exit_code=1, stderr="no paper\n", duration=timedelta(seconds=9))
    differences = {
        difference.what: (difference.good, difference.now)
        for difference in compare_executions(good_run, bad_run)
    }
    assert differences == {
        "exit status": ("0", "1"),
        "first line of stderr": ("warming up", "no paper"),
        "duration": ("1.000s", "9.000s"),
    }
    assert (
        list(compare_executions(good_run, a_log_row(stderr="warming up", duration=timedelta(seconds=2))))
        == []
    )
