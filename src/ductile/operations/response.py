"""Responses: the base of what operations return, and the types of their fields."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, overload

from msgspec import UNSET, Meta, UnsetType

from ductile.core.timestamps import format_timestamp
from ductile.struct import Value, about

#: Marks, in its JSON Schema, a field that only responses without a daemon have.
OFFLINE_ONLY = "x-offline-only"

#: An instant as text, always UTC with microseconds: made by `timestamp`.
Timestamp: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
#: A UUID.
Id: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
#: The field `dry_run` of a response.
WasDryRun: TypeAlias = Annotated[
    bool | UnsetType, about("True if nothing was changed: the request was a dry run.")
]
#: The field `orphaned` of a job: it counts as running although the process that ran it has died. It is never
#: true in a daemon, so HTTP responses do not have it.
Orphaned: TypeAlias = Annotated[bool | UnsetType, Meta(extra_json_schema={OFFLINE_ONLY: True})]
#: The field `next_cursor` of a page of a list.
NextCursor: TypeAlias = Annotated[str | None, about("For the next page; null at the end.")]

_DRY_RUN = "This was a dry run: nothing was changed."


class Response(Value):
    """Encoded to JSON by its fields. Over HTTP every response also has a `message` for people."""

    #: The HTTP status; None for the first status of the operation's route.
    STATUS: ClassVar[int | None] = None
    #: Whether HTTP never returns it, because only a local caller can request it.
    CLI_ONLY: ClassVar[bool] = False

    @property
    def http_status(self) -> int | None:
        return self.STATUS

    @property
    def http_message(self) -> str | None:
        """The `message` over HTTP; None for that of the operation's route."""
        return _DRY_RUN if getattr(self, "dry_run", UNSET) is True else None


ResponseType = TypeVar("ResponseType", bound=Value)


def from_record(response_type: type[ResponseType], record: object, **values: Any) -> ResponseType:
    """Build a struct from the attributes of a stored record that have the same names, instants as text.

    `values` are the fields that the record does not have, or has in another form.
    """
    for name in response_type.__struct_fields__:
        if name not in values and hasattr(record, name):
            value = getattr(record, name)
            values[name] = format_timestamp(value) if isinstance(value, datetime) else value
    return response_type(**values)


@overload
def timestamp(at: datetime) -> str: ...
@overload
def timestamp(at: None) -> None: ...
@overload
def timestamp(at: datetime | None) -> str | None: ...
def timestamp(at: datetime | None) -> str | None:
    return None if at is None else format_timestamp(at)


@overload
def milliseconds(span: timedelta) -> float: ...
@overload
def milliseconds(span: timedelta | None) -> float | None: ...
def milliseconds(span: timedelta | None) -> float | None:
    return None if span is None else round(span.total_seconds() * 1000, 3)
