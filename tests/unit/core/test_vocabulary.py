"""Enumerations that users meet are explained, each of them."""

from __future__ import annotations

import pytest

from ductile.core.jobs.ledger import LEDGER_KINDS, LedgerKind
from ductile.core.jobs.model import (
    EDGES,
    JOB_REASONS,
    RESTING,
    RESTING_EDGES,
    TERMINAL,
    JobReason,
    JobStatus,
    Transition,
)


def test_every_reason_is_explained() -> None:
    assert set(JOB_REASONS) == set(JobReason)
    assert all(text.endswith(".") for text in JOB_REASONS.values())


def test_every_kind_of_ledger_entry_is_explained() -> None:
    assert set(LEDGER_KINDS) == set(LedgerKind)


def test_only_a_manual_retry_leads_out_of_an_end() -> None:
    """Terminal are succeeded, failed and dead; failed → dead is passed through, not rested in."""
    assert {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.DEAD} == TERMINAL
    leaving = {(a, b) for a, b in RESTING_EDGES if a in TERMINAL}
    assert leaving == {(JobStatus.FAILED, JobStatus.QUEUED), (JobStatus.DEAD, JobStatus.QUEUED)}


def test_no_row_rests_in_timed_out() -> None:
    assert JobStatus.TIMED_OUT not in RESTING
    assert all(JobStatus.TIMED_OUT not in edge for edge in RESTING_EDGES)


def test_edges_are_those_of_the_specification() -> None:
    """Written out once more by hand."""
    drawn = {
        None: "queued",
        "queued": "running failed dead",
        "running": "succeeded failed timed_out queued dead",
        "failed": "queued dead",
        "timed_out": "queued dead",
        "dead": "queued",
    }
    assert {(source, target) for source, words in drawn.items() for target in words.split()} == EDGES


@pytest.mark.parametrize("source", [None, *JobStatus])
@pytest.mark.parametrize("target", list(JobStatus))
def test_no_other_edge_can_be_taken(source: JobStatus | None, target: JobStatus) -> None:
    if (source, target) in EDGES:
        Transition(from_status=source, to_status=target, reason=JobReason.RETRY)
    else:
        with pytest.raises(ValueError, match="cannot go from"):
            Transition(from_status=source, to_status=target, reason=JobReason.RETRY)
