"""The page on test cases has every key, and its example passes."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

from builders.configs import a_config
from builders.plugins import a_plugin
from ductile.admin.config import open_configuration
from ductile.config.load import SealMode
from ductile.operations.pipeline_test.cases import FAILURE_REASONS, read_case_text
from ductile.operations.pipeline_test.simulate import run_cases

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "pipeline-cases.md").read_text(encoding="utf-8")
CASES, PIPELINES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_tables_are_those_of_the_program() -> None:
    """Run `make docs` after a change."""
    generator: Any = runpy.run_path(str(DOCS / "generate.py"))
    assert generator["regenerate"]("reference/pipeline-cases.md", PAGE) == PAGE


def test_the_example_goes_as_it_expects(tmp_path: Path) -> None:
    for plugin in ("shop", "mail"):
        a_plugin(tmp_path / "plugins", plugin)
    config = a_config(tmp_path, f"plugins: {{shop: {{}}, mail: {{}}}}\n{PIPELINES}")
    snapshot = open_configuration(config, {"PATH": os.environ["PATH"]}, seal=SealMode.IGNORE).snapshot
    results = run_cases(snapshot, read_case_text(CASES, "the page"))
    assert [result.differences for result in results] == [(), ()]
    assert results[0].synthetic == ("large/ask",)


def test_every_reason_of_a_failure_is_named() -> None:
    assert [reason for reason in FAILURE_REASONS if f"`{reason}`" not in PAGE] == []
