"""Operation ids are unique and valid as names of functions, because tools make functions of operations."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from ductile.api.endpoints import ENDPOINTS
from ductile.api.openapi import fixed_operation_id
from ductile.config.names import NAME
from ductile.operations.plugins.skills import command_id, pipeline_id

#: Few letters and many separators make names that are easy to confuse.
NAMES = st.from_regex(r"[a_][ab_2-]{0,5}", fullmatch=True) | st.from_regex(NAME, fullmatch=True)
COMMANDS = st.tuples(NAMES, NAMES)


@given(first=COMMANDS, second=COMMANDS)
@example(first=("a", "b_c"), second=("a_b", "c"))
@example(first=("a-b", "c"), second=("a_b", "c"))
@example(first=("a", "_b"), second=("a_", "b"))
@example(first=("a", "b__c"), second=("a__b", "c"))
@example(first=("a_", "b"), second=("a", "_b__2"))
def test_no_two_commands_have_the_same_id(first: tuple[str, str], second: tuple[str, str]) -> None:
    """Two commands have the same id only if they are the same command."""
    assert (command_id(*first) == command_id(*second)) == (first == second)


@given(command=COMMANDS, pipeline=NAMES)
def test_ids_are_names_that_functions_may_have(command: tuple[str, str], pipeline: str) -> None:
    """Tools that create functions accept only letters, digits, `_` and `-`."""
    fixed = {fixed_operation_id(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS}
    assert len(fixed) == len(ENDPOINTS)
    assert {command_id(*command), pipeline_id(pipeline)}.isdisjoint(fixed)
    assert command_id(*command) != pipeline_id(pipeline)
    for operation_id in (*fixed, command_id(*command), pipeline_id(pipeline)):
        assert re.fullmatch(r"[A-Za-z0-9_-]+", operation_id)


def test_ordinary_names_read_as_they_are() -> None:
    """The id of an ordinary name is the name itself."""
    assert command_id("echo", "handle") == "run__echo__handle"
    assert command_id("folder_watch", "poll") == "run__folder_watch__poll"
    assert pipeline_id("nightly-backup") == "start__nightly-backup"
