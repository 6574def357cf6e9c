"""The digest of a night is short, and keeps the ids for further questions."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.core.jobs.failures import BreakerState
from ductile.core.jobs.model import JobReason
from ductile.core.jobs.statistics import fit_lists
from ductile.operations.system.digest import (
    ConfigChange,
    Digest,
    FailedGroup,
    LostGroup,
    OpenBreaker,
    RanPlugin,
    SkippedGroup,
    WaitingGroupReport,
)
from ductile.operations.tools.answers import compact, shorten
from ductile.operations.tools.table import TOOLS
from ductile.store.model.maintenance import ConfigOrigin

MAX_TOKENS, BYTES_PER_TOKEN = 1_500, 4
AT = "2026-11-18T03:00:00Z"
JOB = "01a1ef51-0287-7408-b91b-98dd4036684b"
#: Names and errors of the maximal length, with characters of several bytes.
_NAMES = st.text(min_size=1, max_size=60)
_TEXTS = st.text(max_size=120)
#: More entries than a digest has: the answer has to shorten lists that the digest does not.
_MANY = st.integers(0, 200)


@given(name=_NAMES, text=_TEXTS, groups=_MANY, others=_MANY, jobs=st.integers(1, 10**9))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
def test_a_night_fits_in_1500_tokens(name: str, text: str, groups: int, others: int, jobs: int) -> None:
    """The count of all failures and an example of the first group are kept."""
    failed = FailedGroup(
        plugin=name,
        command=name,
        reason=JobReason.ATTEMPTS_EXHAUSTED,
        jobs=jobs,
        first=AT,
        last=AT,
        example=JOB,
        error=text,
        fix=f"Fix the cause, then: ductile job retry {JOB}",
    )
    digest = Digest(
        since=AT,
        until=AT,
        complete=True,
        executions=jobs,
        ran=[RanPlugin(plugin=name, executions=1, failed=1)] * others,
        failed_jobs=jobs,
        cancelled_jobs=0,
        failed=[failed] * groups,
        skipped=[SkippedGroup(plugin=name, schedule=name, reason=text, count=1, first=AT, last=AT)] * others,
        waiting_jobs=0,
        waiting=[WaitingGroupReport(plugin=name, jobs=1, oldest=JOB, why=text)] * others,
        breakers=[
            OpenBreaker(
                plugin=name,
                command=name,
                state=BreakerState.OPEN,
                since=AT,
                fix=f"ductile system reset {name}",
            )
        ]
        * others,
        deliveries=[LostGroup(receiver=text, dropped=1, gone=0, example=JOB, error=text)] * others,
        config=[ConfigChange(at=AT, origin=ConfigOrigin.RELOAD, plugins=[name] * 8)] * others,
        starts=[AT] * others,
        interrupted=0,
        more={"failed": groups},
        next=[f"ductile job explain {JOB}"] * 4,
    )
    row = TOOLS["last_night"]
    answer = shorten(compact(digest, row.omit), row.characters)
    assert len(msgspec.json.encode(answer)) <= MAX_TOKENS * BYTES_PER_TOKEN
    assert answer["failed_jobs"] == jobs
    shown_groups = answer["failed"]
    assert isinstance(shown_groups, list)
    assert bool(shown_groups) == bool(groups)
    assert all(isinstance(group, dict) and group["example"] == JOB for group in shown_groups)
    assert answer["next"] == [f"job_explain job_id={JOB}"] * 4 or "left_out" in answer


@given(
    st.dictionaries(_NAMES, st.integers(0, 3_000), max_size=8),
    st.integers(0, 4_000),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow]
)
def test_lists_share_the_room(lengths: dict[str, int], room: int) -> None:
    """The kept entries fit, and are the first of their list."""
    sizes = {name: [1 + number % 700 for number in range(length)] for name, length in lengths.items()}
    kept = fit_lists(sizes, room)
    assert sum(sum(items[: kept[name]]) for name, items in sizes.items()) <= room
    assert all(0 <= kept[name] <= len(items) for name, items in sizes.items())
