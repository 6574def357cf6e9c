"""What every value of the program is: frozen, slotted, built by keywords, compared by what it holds.

Made by msgspec rather than by `dataclasses`: classes are made ten times, and values four times as quickly,
which is felt at every start and in every job. What changes while it lives is a dataclass still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, dataclass_transform

from msgspec import Struct, StructMeta, field
from msgspec.structs import replace

__all__ = ["Value", "field", "replace"]


class _Frozen(StructMeta):
    """msgspec hands on to a subclass that it is frozen, but not that it is built by keywords."""

    def __new__(  # noqa: PYI034 - a metaclass may not say Self
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        hides: tuple[str, ...] = (),
        **options: Any,
    ) -> _Frozen:
        if hides:
            namespace["__repr__"] = _repr_without(hides, among=namespace["__annotations__"])
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True} | options)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, metaclass=_Frozen, frozen=True):
    """The base of all values. The fields named in `hides` may hold secrets, and are never printed."""


def _repr_without(hidden: tuple[str, ...], among: dict[str, Any]) -> Callable[[Struct], str]:
    if unknown := [name for name in hidden if name not in among]:
        raise TypeError(f"there is no field to hide: {', '.join(unknown)}")

    def shown(value: Struct) -> str:
        names = [name for name in value.__struct_fields__ if name not in hidden]
        return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in names)})"

    return shown
