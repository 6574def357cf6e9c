"""A tree that is too large for one response says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.engines import an_engine
from builders.jobs import a_new_job
from builders.stores import accept
from ductile.operations.jobs import query
from ductile.operations.jobs.lookup import OneJob


@pytest.mark.parametrize(("max_jobs", "children"), [(4, 3), (3, 2)])
async def test_left_out_jobs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_jobs: int, children: int
) -> None:
    monkeypatch.setattr(query, "MAX_TREE_JOBS", max_jobs)
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        store = harness.store.real
        root = await accept(store, a_new_job("echo"))
        for _ in range(3):
            await accept(store, a_new_job("echo", parent_job_id=root))
        response = await query.job_tree(harness.context, OneJob(job_id=root))
    assert len(response.tree.children) == children
    assert response.truncated is (max_jobs == 3)
