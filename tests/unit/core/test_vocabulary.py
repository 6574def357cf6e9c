"""Every value of an enumeration that users meet has a description."""

from __future__ import annotations

import pytest

from ductile.core.jobs.model import (
    EDGES,
    STORED_STATUSES,
    TERMINAL,
    JobReason,
    JobStatus,
    LedgerKind,
    Transition,
)
from ductile.core.schedules.admission import ScheduleCause
from ductile.core.schedules.planner import SkipReason
from ductile.struct import DescribedEnum, convert, to_builtins


@pytest.mark.parametrize("word", [*JobReason, *LedgerKind, *SkipReason, *ScheduleCause])
def test_every_word_is_explained_by_a_sentence(word: DescribedEnum) -> None:
    assert word.description[0].isupper()
    assert word.description.endswith(".")


def test_an_explained_word_is_its_value() -> None:
    """The value is the text in JSON, in the database and in messages."""
    assert JobReason("no_resources") is JobReason.NO_RESOURCES
    assert str(JobReason.NO_RESOURCES) == JobReason.NO_RESOURCES.value == "no_resources"
    assert to_builtins(JobReason.NO_RESOURCES) == "no_resources"
    assert convert("no_resources", JobReason) is JobReason.NO_RESOURCES


def test_only_a_manual_retry_leads_out_of_an_end() -> None:
    """The terminal statuses are succeeded, failed and dead; failed → dead is one step of a settlement."""
    assert {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.DEAD} == TERMINAL
    leaving = {(a, b) for a, b in EDGES if a in TERMINAL} - {(JobStatus.FAILED, JobStatus.DEAD)}
    assert leaving == {(JobStatus.FAILED, JobStatus.QUEUED), (JobStatus.DEAD, JobStatus.QUEUED)}


def test_no_row_rests_in_timed_out() -> None:
    assert JobStatus.TIMED_OUT not in STORED_STATUSES


def test_edges_are_those_of_the_specification() -> None:
    """The edges are written a second time here."""
    expected = {
        None: "queued",
        "queued": "running failed dead",
        "running": "succeeded failed timed_out queued dead",
        "failed": "queued dead",
        "timed_out": "queued dead",
        "dead": "queued",
    }
    assert {(source, target) for source, words in expected.items() for target in words.split()} == EDGES


@pytest.mark.parametrize("source", [None, *JobStatus])
@pytest.mark.parametrize("target", list(JobStatus))
def test_no_other_edge_can_be_taken(source: JobStatus | None, target: JobStatus) -> None:
    if (source, target) in EDGES:
        Transition(from_status=source, to_status=target, reason=JobReason.RETRY)
    else:
        with pytest.raises(ValueError, match="cannot go from"):
            Transition(from_status=source, to_status=target, reason=JobReason.RETRY)
