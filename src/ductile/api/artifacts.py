"""Artifacts over HTTP: sent as they are read, as a download, never as a page of ours."""

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

_PIECE = 256 * 1024


async def artifact(request: ApiRequest) -> Stream:
    opened = await open_artifact(request.context, decode_request(OpenArtifact, request.values))

    async def run(send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _headers(opened)})
        await _send_pieces(send, opened)

    return Stream(run=run, close=partial(os.close, opened.descriptor))


async def _send_pieces(send: ASGISendCallable, opened: OpenedArtifact) -> None:
    """As many bytes as were promised. A file that has become shorter breaks the answer off, visibly."""
    left = opened.size
    while left:
        piece = await asyncio.to_thread(os.read, opened.descriptor, min(_PIECE, left))
        if not piece:
            return
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(opened: OpenedArtifact) -> list[tuple[bytes, bytes]]:
    """A plugin's file may be a web page: it must not act as one of ours in somebody's browser."""
    name = quote(opened.name, safe="")
    return [
        (b"content-type", opened.media_type.encode()),
        (b"content-length", str(opened.size).encode()),
        (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"cache-control", b"private, no-store"),
    ]
