"""An id tells when it was made; that is how a job is found by its beginning (SPEC 4.1, 11)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.ids import make_id
from ductile.operations.job_ids import SHORTEST_BEGINNING, _span_of

MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 - made aware below
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(MOMENTS, st.integers(), st.integers(SHORTEST_BEGINNING, 35))
def test_the_span_of_a_beginning_holds_the_instant_of_the_job(now: datetime, seed: int, length: int) -> None:
    """However much of the id is given, and wherever it is cut."""
    span = _span_of(make_id(now, Random(seed))[:length])
    assert span is not None
    assert span[0] <= now <= span[1]


@given(MOMENTS, st.integers())
def test_the_more_is_given_the_less_has_to_be_looked_through(now: datetime, seed: int) -> None:
    job_id = make_id(now, Random(seed))
    spans = [span for length in range(8, 36) if (span := _span_of(job_id[:length]))]
    assert all(wide[0] <= narrow[0] and narrow[1] <= wide[1] for wide, narrow in pairwise(spans))


@given(st.text(max_size=40))
def test_whatever_is_typed_is_a_beginning_or_not(text: str) -> None:
    """Nothing is so odd that it ends in a fault."""
    _span_of(text.lower())
