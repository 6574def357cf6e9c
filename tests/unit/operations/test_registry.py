"""Every operation that is named can be loaded, and is what the table takes it for."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from ductile.operations.table import OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operation_is_there(name: str) -> None:
    """An operation takes a desk and what is given, and answers later."""
    module, _, function = OPERATIONS[name].__qualname__.partition(":")
    found = getattr(import_module(f"ductile.operations.{module}"), function)
    assert inspect.iscoroutinefunction(found)
    assert len(inspect.signature(found).parameters) == 2
