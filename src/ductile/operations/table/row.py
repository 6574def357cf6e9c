"""How a row of the table of operations is written."""

from __future__ import annotations

from functools import partial
from typing import Any

from ductile.operations.operation import Access, HttpRoute, Operation


def _operation(
    name: str, target: str, summary: str, access: Access, http: HttpRoute | None = None, **options: bool
) -> Operation:
    return Operation(name=name, target=target, summary=summary, access=access, http=http, **options)


#: An operation that also runs while another process has the store's lock.
read = partial(_operation, read_only=True)
#: An operation of the daemon, or of the process that has the store's lock.
exclusive = _operation

ONE_JOB = (200, 404, 409)
#: A response that comes when something has happened, or when the `timeout` of the request is over.
LONG_POLL: dict[str, Any] = {"tag": "jobs", "waits": True}
