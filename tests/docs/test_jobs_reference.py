"""docs/reference/jobs.md agrees with the code: states, edges, reasons, holds, ledger kinds."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from ductile.core.jobs.model import EDGES, TERMINAL, Hold, JobReason, JobStatus, LedgerKind, SubmittedBy
from ductile.core.jobs.settlement import LogStatus

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "jobs.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def table(title: str) -> dict[str, list[str]]:
    """Return the rows of a section's table by their first cell."""
    rows = [line.strip("|").split("|") for line in section(title).splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_diagram_draws_every_edge_and_no_other() -> None:
    """Code, SQL and docs have the same edges."""
    edges = re.findall(r"^ +(\S+) --> (\S+)$", section("Edges"), re.MULTILINE)
    assert {
        (None if source == "[*]" else JobStatus(source), JobStatus(target)) for source, target in edges
    } == EDGES
    assert len(edges) == len(EDGES)


def test_the_states_and_which_of_them_end_a_job() -> None:
    states = table("States")
    assert set(states) == set(JobStatus)
    assert {state for state, cells in states.items() if cells[1] == "yes"} == TERMINAL


def test_every_reason_reads_as_in_the_code() -> None:
    """`reason` comes from a documented list."""
    assert table("Reasons") == {str(reason): [reason.description] for reason in JobReason}


def test_every_ledger_kind_reads_as_in_the_code() -> None:
    assert table("The ledger") == {str(kind): [kind.description] for kind in LedgerKind}


@pytest.mark.parametrize(
    ("title", "words"), [("Holds", Hold), ("Sources", SubmittedBy), ("The log", LogStatus)]
)
def test_every_word_is_there(title: str, words: type[StrEnum]) -> None:
    documented = set(re.findall(r"`([a-z_]+)`", section(title)))
    assert set(words) <= documented
