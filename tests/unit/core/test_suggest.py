"""Hints of the form "did you mean"."""

from __future__ import annotations

from ductile.core.suggest import did_you_mean


def test_a_suggestion_compares_a_limited_number_of_names() -> None:
    numbers = iter(range(1_000_000))
    names = (f"name{number:06}" for number in numbers)
    assert did_you_mean("name00000x", names) is not None
    assert next(numbers) < 5_000


def test_a_name_of_another_length_is_not_suggested() -> None:
    assert did_you_mean("log", ["log_level_of_everything"]) is None
    assert did_you_mean("log_levle", ["name", "log_level"]) == "did you mean log_level?"
