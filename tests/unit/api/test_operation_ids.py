"""Tools make functions of operations, and call them by their ids."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from ductile.api.endpoints import ENDPOINTS
from ductile.api.openapi import fixed_operation_id
from ductile.config.names import NAME
from ductile.operations.plugins.skills import command_id, pipeline_id

#: Few letters and many separators: names that could be taken for one another.
NAMES = st.from_regex(r"[a_][ab_2-]{0,5}", fullmatch=True) | st.from_regex(NAME, fullmatch=True)
COMMANDS = st.tuples(NAMES, NAMES)


@given(one=COMMANDS, other=COMMANDS)
@example(one=("a", "b_c"), other=("a_b", "c"))
@example(one=("a-b", "c"), other=("a_b", "c"))
@example(one=("a", "_b"), other=("a_", "b"))
@example(one=("a", "b__c"), other=("a__b", "c"))
@example(one=("a_", "b"), other=("a", "_b__2"))
def test_no_two_commands_have_the_same_id(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Whatever plugins and commands are called, and whichever others there are."""
    assert (command_id(*one) == command_id(*other)) == (one == other)


@given(command=COMMANDS, pipeline=NAMES)
def test_ids_are_names_that_functions_may_have(command: tuple[str, str], pipeline: str) -> None:
    """Tools that make functions of them take letters, digits, `_` and `-`, and nothing else."""
    fixed = {fixed_operation_id(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS}
    assert len(fixed) == len(ENDPOINTS)
    assert {command_id(*command), pipeline_id(pipeline)}.isdisjoint(fixed)
    assert command_id(*command) != pipeline_id(pipeline)
    for operation_id in (*fixed, command_id(*command), pipeline_id(pipeline)):
        assert re.fullmatch(r"[A-Za-z0-9_-]+", operation_id)


def test_ordinary_names_read_as_they_are() -> None:
    """What most plugins are called needs no more than the names."""
    assert command_id("echo", "handle") == "run__echo__handle"
    assert command_id("folder_watch", "poll") == "run__folder_watch__poll"
    assert pipeline_id("nightly-backup") == "start__nightly-backup"
