"""Every row of the table of operations names a function whose types can be resolved."""

from __future__ import annotations

import inspect

import pytest

from ductile.operations.table import OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operation_can_be_loaded(name: str) -> None:
    """The function is async and takes a context and a request; its annotations give the types."""
    operation = OPERATIONS[name]
    assert inspect.iscoroutinefunction(operation.function)
    assert len(inspect.signature(operation.function).parameters) == 2
    assert all(field.description for field in operation.fields.values())
    assert operation.response_types
