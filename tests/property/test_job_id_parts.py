"""A job is found by the beginning of its id, or by its end."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.ids import make_id
from ductile.operations.jobs.lookup import (
    MIN_ID_DIGITS,
    LatestFailure,
    LatestJob,
    PartOfId,
    WholeId,
    id_prefix,
    id_suffix,
    parse_reference,
)

MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 - made aware below
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(MOMENTS, st.integers(), st.integers(MIN_ID_DIGITS, 31), st.booleans())
def test_every_beginning_of_an_id_is_one(now: datetime, seed: int, length: int, dashes: bool) -> None:
    """Any part of the id is enough, with its dashes or without."""
    job_id = make_id(now, Random(seed))
    typed = job_id[:length] if dashes else job_id.replace("-", "")[:length]
    beginning = id_prefix(typed)
    if beginning is None:  # with a dash among the first characters, too few digits are left
        assert len(typed.replace("-", "")) < MIN_ID_DIGITS
    else:
        assert job_id.startswith(beginning)
        assert beginning.replace("-", "") == typed.replace("-", "")


@given(st.text(max_size=40))
def test_whatever_is_typed_is_a_beginning_or_not(text: str) -> None:
    """No input raises, and only digits of an id are looked up."""
    beginning = id_prefix(text.lower())
    assert beginning is None or set(beginning) <= set("0123456789abcdef-")


@given(MOMENTS, st.integers(), st.integers(MIN_ID_DIGITS, 31), st.booleans())
def test_every_end_of_an_id_is_one(now: datetime, seed: int, length: int, dashes: bool) -> None:
    """The property above holds for ends of ids too."""
    job_id = make_id(now, Random(seed))
    typed = job_id[-length:] if dashes else job_id.replace("-", "")[-length:]
    ending = id_suffix(typed)
    if ending is None:
        assert len(typed.replace("-", "")) < MIN_ID_DIGITS
    else:
        assert job_id.endswith(ending)
        assert ending.replace("-", "") == typed.replace("-", "")


@given(st.text(max_size=40))
def test_every_text_has_one_meaning(text: str) -> None:
    """No input raises. `last` hides no id, because no id begins with that word."""
    match parse_reference(text):
        case LatestJob(name=name):
            assert text.strip().lower() == "last" if name is None else text.strip().endswith(f":{name}")
        case LatestFailure():
            assert text.strip().lower() == "last:failed"
        case PartOfId(prefix=prefix, suffix=suffix):
            assert prefix.replace("-", "") == suffix.replace("-", "") == text.strip().lower().replace("-", "")
        case WholeId(job_id=job_id):
            assert job_id == text.strip().lower()


@given(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]*", fullmatch=True).filter(lambda name: name.lower() != "failed")
)
def test_last_takes_the_name_of_any_plugin(name: str) -> None:
    assert parse_reference(f"last:{name}") == LatestJob(name=name)


@given(MOMENTS, st.integers())
def test_a_whole_id_is_one(now: datetime, seed: int) -> None:
    job_id = make_id(now, Random(seed))
    assert parse_reference(f" {job_id.upper()} ") == WholeId(job_id=job_id)
