"""The base of all values: frozen, slotted, built by keywords, compared by content.

They are msgspec structs, not dataclasses: classes are created ten times as fast and values several times
as fast, which matters at every start and in every job. Mutable objects are dataclasses, or plain structs
where each request creates one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self, TypeVar, dataclass_transform

from msgspec import Meta, Struct, convert, field, to_builtins
from msgspec.structs import asdict, replace

__all__ = [
    "DescribedEnum",
    "Value",
    "about",
    "asdict",
    "convert",
    "field",
    "hide_in_repr",
    "replace",
    "to_builtins",
]

Class = TypeVar("Class", bound=type[Struct])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """The base of all values.

    The type checker requires keywords; msgspec does so only with `kw_only`, which a class needs if a field
    without a default follows one with a default. `kw_only` for all would be three times as slow.
    """


def about(description: str) -> Meta:
    """Return an annotation that describes a field in schemas and documentation."""
    return Meta(description=description)


class DescribedEnum(StrEnum):
    """An enum whose members have a sentence that explains them: `NAME = "value", "Sentence."`."""

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member


def hide_in_repr(*names: str) -> Callable[[Class], Class]:
    """Return a class decorator that omits fields that can contain secrets from the `repr` of its values."""

    def repr_without_names(value: Any) -> str:
        visible = [name for name in value.__struct_fields__ if name not in names]
        return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in visible)})"

    def hide(cls: Class) -> Class:
        if unknown := [name for name in names if name not in cls.__struct_fields__]:
            raise TypeError(f"there is no field to hide: {', '.join(unknown)}")
        cls.__repr__ = repr_without_names  # type: ignore[method-assign]  # the purpose of this decorator
        return cls

    return hide
