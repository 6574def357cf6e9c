"""The same HTTP server without a store: reads a body, parses it, responds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ductile.http.body import decode_object, read_body
from ductile.http.responses import send_json
from ductile.http.server import Listener, ListenerLimits

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope


async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    body = await read_body(scope, receive, limit=1_000_000, seconds=30)  # type: ignore[arg-type]  # an HTTP scope
    decode_object(body)
    await send_json(send, 202, {"job_id": "019c3d1b-0000-7000-8000-000000000000", "status": "queued"})


async def main() -> None:
    listener = Listener("bare", "127.0.0.1:0", answer, ListenerLimits())
    (address,) = await listener.start()
    print(address.rpartition(":")[2], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
