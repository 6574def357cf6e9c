"""Artifacts over HTTP: streamed from the file, as a download."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from ductile.api.endpoint import ApiRequest
from ductile.http.responses import Stream
from ductile.operations.jobs.artifacts import OpenArtifact, OpenedArtifact, open_artifact
from ductile.operations.request import decode_request

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

_CHUNK = 256 * 1024


async def artifact(request: ApiRequest) -> Stream:
    opened = await open_artifact(request.context, decode_request(OpenArtifact, request.values))

    async def run(send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _headers(opened)})
        left = opened.size
        while left:
            chunk = await asyncio.to_thread(os.read, opened.descriptor, min(_CHUNK, left))
            if not chunk:  # the file has become shorter: the response ends early, which the client notices
                return
            left -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Stream(run=run, close=partial(os.close, opened.descriptor))


def _headers(opened: OpenedArtifact) -> list[tuple[bytes, bytes]]:
    """A plugin's file may be a web page: a browser must download it, and not run it with our origin."""
    name = quote(opened.name, safe="")
    return [
        (b"content-type", opened.media_type.encode()),
        (b"content-length", str(opened.size).encode()),
        (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"cache-control", b"private, no-store"),
    ]
