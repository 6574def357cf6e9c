"""What every value is: frozen, built by keywords, and silent about what it hides."""

from __future__ import annotations

import pytest

from ductile.struct import Value, field, hide_in_repr, replace


@hide_in_repr("password")
class Account(Value):
    name: str
    password: str
    tags: dict[str, str] = field(default_factory=dict)


class Place(Value, kw_only=False):
    x: int
    y: int


def test_a_value_is_built_by_keywords_and_stays_as_it_is() -> None:
    account = Account(name="ann", password="canary")
    # Seen to by the type checker alone; this line would be refused if it had nothing to ignore.
    assert Account("ann", "canary") == account  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        account.name = "bob"  # type: ignore[misc]  # as above
    assert replace(account, name="bob").name == "bob"
    assert account == Account(name="ann", password="canary")
    assert Place(1, 2) == Place(x=1, y=2)


def test_hidden_fields_are_not_printed() -> None:
    account = Account(name="ann", password="canary")
    assert repr(account) == "Account(name='ann', tags={})"
    assert "canary" not in f"{account}"


def test_only_what_is_there_can_be_hidden() -> None:
    """A slip in the name would show the secret."""
    with pytest.raises(TypeError, match="no field to hide: pasword"):

        @hide_in_repr("pasword")
        class Slip(Value):
            password: str
