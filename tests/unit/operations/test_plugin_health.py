"""A failed init marks its plugin unhealthy, until the next good one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders.jobs import START
from ductile.operations.plugins.health import decide_failed_init
from ductile.store.model.jobs import InitKey, InitRecord, InitStatus

NOW = InitKey(plugin="p", fingerprint="f", config_hash="now")
BEFORE = InitKey(plugin="p", fingerprint="f", config_hash="before")
OTHER = InitKey(plugin="q", fingerprint="f", config_hash="now")
GOOD, BAD, OPEN = InitStatus.SUCCEEDED, InitStatus.FAILED, InitStatus.PENDING


def a_record(key: InitKey, status: InitStatus, minute: int) -> InitRecord:
    at = START + timedelta(minutes=minute)
    return InitRecord(key=key, status=status, job_id=f"{key.config_hash} {minute}", error=None, updated_at=at)


@pytest.mark.parametrize(
    ("records", "marked_by"),
    [
        ([], None),
        ([(NOW, GOOD)], None),
        ([(NOW, BAD)], "now 0"),
        ([(OTHER, BAD)], None),
        ([(BEFORE, BAD), (NOW, OPEN)], "before 0"),
        ([(BEFORE, BAD)], "before 0"),
        ([(BEFORE, BAD), (NOW, GOOD)], None),
        ([(NOW, GOOD), (BEFORE, BAD)], None),
        ([(BEFORE, GOOD), (NOW, OPEN)], None),
    ],
    ids=[
        "never",
        "well",
        "failed",
        "another plugin",
        "the new one has not ended",
        "the new one has not begun",
        "the next good one clears it",
        "back to a version that was well",
        "well before",
    ],
)
def test_which_init_marks_a_plugin(records: list[tuple[InitKey, InitStatus]], marked_by: str | None) -> None:
    """The result for the configured version counts; without one, the latest result counts."""
    failed_init = decide_failed_init(
        [a_record(key, status, n) for n, (key, status) in enumerate(records)], NOW
    )
    assert (None if failed_init is None else failed_init.job_id) == marked_by
