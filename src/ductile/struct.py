"""What every value of the program is: frozen, slotted, built by keywords, compared by what it holds.

Made by msgspec rather than by `dataclasses`: classes are made ten times, and values several times as quickly,
which is felt at every start and in every job. What changes while it lives is a dataclass still, or
a plain struct where each request makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self, TypeVar, dataclass_transform

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import asdict, replace

__all__ = ["DescribedEnum", "Value", "asdict", "convert", "field", "hide_in_repr", "replace", "to_builtins"]

Class = TypeVar("Class", bound=type[Struct])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """The base of all values.

    That they are built by keywords is for the type checker to see to. msgspec asks for `kw_only` only where
    a field without a default follows one with; a metaclass that said it for all would make each value three
    times as dear.
    """


class DescribedEnum(StrEnum):
    """An enum whose members have a sentence that explains them: `NAME = "value", "Sentence."`."""

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member


def hide_in_repr(*names: str) -> Callable[[Class], Class]:
    """For a class some of whose fields may hold secrets: they are never printed."""

    def hide(cls: Class) -> Class:
        if unknown := [name for name in names if name not in cls.__struct_fields__]:
            raise TypeError(f"there is no field to hide: {', '.join(unknown)}")
        cls.__repr__ = _repr_without(names)  # type: ignore[method-assign]  # that is what it is for
        return cls

    return hide


def _repr_without(hidden: tuple[str, ...]) -> Callable[[Any], str]:
    def shown(value: Struct) -> str:
        names = [name for name in value.__struct_fields__ if name not in hidden]
        return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in names)})"

    return shown
