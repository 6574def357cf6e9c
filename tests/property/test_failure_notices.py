"""Failure notices report every failure once, and become rarer while failures continue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import a_job
from ductile.core.jobs.failure_notices import (
    FIRST_WINDOW,
    LONGEST_WINDOW,
    MAX_EXAMPLES,
    NOTICE_DETAIL,
    FailureGroup,
    NoticeWindow,
    ReportedFailure,
    choose_examples,
    is_reported,
    notice_due_at,
    notice_payload,
    window_after,
)
from ductile.core.jobs.model import EARLY_END_REASONS, JobReason, JobStatus, SubmittedBy

START = datetime(2026, 3, 1, tzinfo=UTC)
BAD = (JobStatus.FAILED, JobStatus.DEAD)


def instants(seconds: list[float]) -> list[datetime]:
    return [START + timedelta(seconds=offset) for offset in sorted(seconds)]


def simulate_notices(failures: list[datetime]) -> list[tuple[datetime, list[datetime]]]:
    """Return the notices of failures at these instants, each with the failures that it reports."""
    window: NoticeWindow | None = None
    notices: list[tuple[datetime, list[datetime]]] = []
    waiting: list[datetime] = []
    for index, at in enumerate(failures):
        waiting.append(at)
        following = failures[index + 1] if index + 1 < len(failures) else datetime.max.replace(tzinfo=UTC)
        due = max(notice_due_at(window, waiting[0], at), at)
        if due < following or (due == following == at):
            notices.append((due, waiting))
            window = window_after(window, waiting[0], due)
            waiting = []
    assert not waiting
    return notices


@given(st.lists(st.floats(min_value=0, max_value=200_000), min_size=1, max_size=200))
def test_every_failure_is_reported_once(seconds: list[float]) -> None:
    failures = instants(seconds)
    assert [failure for _, reported in simulate_notices(failures) for failure in reported] == failures


@given(st.lists(st.floats(min_value=0, max_value=200_000), min_size=1, max_size=200, unique=True))
def test_a_failure_waits_at_most_for_the_longest_window_and_notices_keep_a_distance(
    seconds: list[float],
) -> None:
    notices = simulate_notices(instants(seconds))
    for at, reported in notices:
        assert reported[0] <= at <= reported[0] + LONGEST_WINDOW
    for (earlier, _), (later, _) in pairwise(notices):
        assert later - earlier >= FIRST_WINDOW


def test_windows_double_while_failures_continue_and_end_after_a_quiet_one() -> None:
    every_second = [START + timedelta(seconds=second) for second in range(8 * 3600)]
    sent = [at for at, _ in simulate_notices(every_second)]
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    minutes = [round(gap.total_seconds() / 60) for gap in gaps]
    assert sent[0] == START
    assert minutes[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    quiet = sent[-1] + 2 * LONGEST_WINDOW
    assert simulate_notices([*every_second, quiet])[-1] == (quiet, [quiet])


@given(st.floats(min_value=0.001, max_value=1e8))
def test_a_clock_that_was_set_back_delays_no_notice(seconds: float) -> None:
    window = NoticeWindow(begins_at=START, length=LONGEST_WINDOW)
    now = START - timedelta(seconds=seconds)
    assert notice_due_at(window, START + timedelta(seconds=1), now) <= now


def a_failure(name: str, number: int, reason: JobReason) -> ReportedFailure:
    return ReportedFailure(
        job_id=f"{name}-{reason}-{number}",
        plugin=name,
        command="poll",
        pipeline=None,
        status=JobStatus.FAILED,
        reason=reason,
        error=f"line\nnumber {number}",
        attempts=1,
        ended_at=START + timedelta(seconds=number),
    )


groups = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from([JobReason.BAD_EXIT, JobReason.PLUGIN_ERROR]),
        st.integers(min_value=1, max_value=30),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda group: group[:2],
).map(
    lambda drawn_groups: [
        FailureGroup(
            plugin=name,
            command="poll",
            reason=reason,
            count=count,
            first_at=START,
            last_at=START + timedelta(seconds=count),
            examples=tuple(a_failure(name, number, reason) for number in range(min(count, MAX_EXAMPLES))),
        )
        for name, reason, count in drawn_groups
    ]
)


@given(groups)
def test_counts_are_exact_and_every_group_has_an_example(failure_groups: list[FailureGroup]) -> None:
    payload, examples = notice_payload(failure_groups), choose_examples(failure_groups)
    total = sum(group.count for group in failure_groups)
    by_plugin = payload["by_plugin"]
    assert payload["count"] == total
    assert isinstance(by_plugin, dict)
    assert sum(entry["count"] for entry in by_plugin.values()) == total  # type: ignore[index,call-overload,misc]
    assert len(examples) == min(total, MAX_EXAMPLES)
    assert {(entry.plugin, entry.reason) for entry in examples} == {
        (group.plugin, group.reason) for group in failure_groups
    }
    assert isinstance(payload["text"], str)
    assert all(group.plugin in payload["text"] for group in failure_groups)


@given(st.sampled_from(list(JobStatus)), st.sampled_from(list(JobReason)))
def test_only_failures_that_were_not_requested_are_reported(status: JobStatus, reason: JobReason) -> None:
    expected = status in BAD and reason not in EARLY_END_REASONS
    assert is_reported(a_job(), status, reason) is expected
    assert not is_reported(a_job(run_id="run"), status, reason)
    notice = a_job(submitted_by=SubmittedBy.HOOK, submitted_detail=NOTICE_DETAIL)
    assert not is_reported(notice, status, reason)
    assert not is_reported(a_job(command="health", submitted_by=SubmittedBy.CORE), status, reason)
