"""Hints for people at a terminal become hints for agents."""

from __future__ import annotations

import pytest

from ductile.errors import ConfigError, Problem
from ductile.operations.tools.schemas import tool_fields
from ductile.operations.tools.table import TOOLS
from ductile.operations.tools.wording import TOOL_OF_COMMAND, replace_cli_commands, reword_error


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("Fix the cause, then: ductile job retry 01ab-2", "Fix the cause, then: job_retry job_id=01ab-2"),
        ("ductile schedule resume timed nightly", "schedule_resume plugin=timed schedule=nightly"),
        ("ductile schedule explain timed", "schedule_explain plugin=timed"),
        ("See `ductile job list`.", "See job_list."),
        ("its output (ductile job logs 7f) says where", "its output (job_logs job_id=7f) says where"),
        ("ductile webhook deliveries lists them.", "delivery_list lists them."),
        (
            "ductile webhook resend --status dropped --dry-run",
            "delivery_resend_many status=dropped dry_run=true",
        ),
        ("ductile job retry 7f --from-step two", "run_retry job_id=7f step=two"),
        ("ductile job wait 7f returns when it has ended.", "job_wait job_id=7f returns when it has ended."),
        (
            "more time: ductile config set plugins.a.timeouts.poll DURATION --lock",
            'more time: config_plan set={"plugins.a.timeouts.poll": "DURATION"}',
        ),
        ("and then: ductile system reload", "and then: config_plan and config_apply"),
        ("`ductile config history` lists what there is.", "config_history lists what there is."),
        ("ductile plugin test shop shows where", "ductile plugin test shop shows where"),
        (
            "Undo it by hand and run `ductile apply`, or wait.",
            "Undo it by hand and run config_plan and config_apply, or wait.",
        ),
        ("nothing to do", "nothing to do"),
    ],
)
def test_commands_become_calls(hint: str, expected: str) -> None:
    """A command that has a tool becomes its call; every other text stays as it is."""
    assert replace_cli_commands(hint) == expected


def test_the_tools_that_are_named_exist() -> None:
    """The arguments exist too."""
    for tool, *names in TOOL_OF_COMMAND.values():
        assert tool in TOOLS
        assert set(names) <= set(tool_fields(TOOLS[tool]))


def test_hints_of_problems_too() -> None:
    error = ConfigError(
        "bad", hint="ductile job list", problems=(Problem(message="x", hint="ductile plugin list"),)
    )
    reworded = reword_error(error)
    assert isinstance(reworded, ConfigError)
    assert (reworded.hint, reworded.problems[0].hint) == ("job_list", "plugin_list")
