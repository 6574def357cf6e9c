"""Values are frozen, built by keywords, and hide fields in their repr."""

from __future__ import annotations

import pytest

from ductile.struct import Value, field, hide_in_repr, replace


@hide_in_repr("password")
class Account(Value):
    name: str
    password: str
    tags: dict[str, str] = field(default_factory=dict)


class Point(Value, kw_only=False):
    x: int
    y: int


def test_a_value_is_built_by_keywords_and_stays_as_it_is() -> None:
    account = Account(name="ann", password="canary")
    # The type checker refuses positional arguments; the comment would be an error if it did not.
    assert Account("ann", "canary") == account  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        account.name = "bob"  # type: ignore[misc]  # as above
    assert replace(account, name="bob").name == "bob"
    assert account == Account(name="ann", password="canary")
    assert Point(1, 2) == Point(x=1, y=2)


def test_hidden_fields_are_not_printed() -> None:
    account = Account(name="ann", password="canary")
    assert repr(account) == "Account(name='ann', tags={})"
    assert "canary" not in f"{account}"


def test_only_what_is_there_can_be_hidden() -> None:
    """A misspelt name would show the secret."""
    with pytest.raises(TypeError, match="no field to hide: pasword"):

        @hide_in_repr("pasword")
        class Misspelt(Value):
            password: str
