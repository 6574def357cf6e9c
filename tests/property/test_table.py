"""Tables on a terminal fit, and only optional columns are left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.cli.console.table import GAP, Table, fit_table

HEADERS = ("JOB", "NAME", "WHEN", "BY", "ABOUT")
SPARE = ("BY", "WHEN")
words = st.text("abc …-", max_size=60)
cells = words | st.just("01a1e748-4305-7000-8000-0123456789ab")
tables = st.lists(st.tuples(cells, cells, st.just("2026-11-17T02:17:00Z"), cells, cells), max_size=4)


@given(tables, st.integers(40, 200))
def test_a_table_fits_and_keeps_its_columns(rows: list[tuple[str, ...]], width: int) -> None:
    """No line is longer than the terminal, and only optional or empty columns are left out."""
    table = fit_table(Table(HEADERS, rows), width, SPARE, "2026-11-17")
    assert sum(table.widths) + len(GAP) * (len(table.headers) - 1) <= width
    empty = {header for header, *column in zip(HEADERS, *rows, strict=True) if set(column) <= {"", "-"}}
    assert set(HEADERS) - set(table.headers) <= {*SPARE, *empty}
    assert len(table.rows) == len(rows)


@given(tables)
def test_a_table_that_fits_is_left_alone(rows: list[tuple[str, ...]]) -> None:
    table = Table(HEADERS, rows)
    assert fit_table(table, 1000, SPARE, "2026-11-17") is table


def test_ids_shrink_before_columns_are_left_out() -> None:
    """Ids and instants are shortened, then optional columns are left out in order, then the widest is cut."""
    row = ("01a1e748-4305-7000-8000-0123456789ab", "fail", "2026-11-17 02:17:00", "scheduler", "x" * 30)
    assert fit_table(Table(HEADERS, [row]), 90, SPARE, "2026-11-17").rows == [
        ["0123456789ab", "fail", "02:17:00", "scheduler", "x" * 30]
    ]
    assert fit_table(Table(HEADERS, [row]), 90, SPARE, "2026-11-18").rows[0][2] == "11-17 02:17"
    narrow = fit_table(Table(HEADERS, [row]), 55, SPARE, "2026-11-17")
    assert narrow.headers == ["JOB", "NAME", "WHEN", "ABOUT"]
    assert narrow.rows == [["0123456789ab", "fail", "02:17:00", "x" * 24 + "…"]]


@given(st.lists(st.tuples(cells, cells, cells, cells, words), max_size=4), st.integers(40, 200))
def test_prose_fits_and_none_of_it_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    """Wrapped text is complete and under its own column, and no line is too long."""
    table = fit_table(Table(HEADERS, rows), width, SPARE, "2026-11-17", wrap_last=True)
    assert sum(table.widths) + len(GAP) * (len(table.headers) - 1) <= width
    prose_text = "".join(row[-1] for row in table.rows)
    assert prose_text.replace(" ", "") == "".join(row[-1] for row in rows).replace(" ", "")
