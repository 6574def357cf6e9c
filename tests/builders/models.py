"""A server that speaks Ollama's protocol, as far as the plugin uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from builders.services import Reply, Service, ServiceRequest, a_service

#: The only model of the server.
LLAMA = "llama3.2:latest"
JSON = {"Content-Type": "application/json; charset=utf-8"}
NDJSON = {"Content-Type": "application/x-ndjson"}
_AT = "2026-05-23T12:00:00Z"
_COUNTS = {
    "total_duration": 5, "load_duration": 1, "prompt_eval_count": 4,
    "prompt_eval_duration": 1, "eval_count": 3, "eval_duration": 2,
}  # fmt: skip
_LAYER = {"status": "pulling 667b0c1932bc", "digest": "sha256:667b", "total": 2_000_000_000}
_PULLING: tuple[dict[str, Any], ...] = (
    {"status": "pulling manifest"},
    {**_LAYER, "completed": 0},
    {**_LAYER, "completed": 2_000_000_000},
    {"status": "verifying sha256 digest"},
    {"status": "writing manifest"},
    {"status": "success"},
)


def answer(request: ServiceRequest) -> Reply:
    """Respond as Ollama does."""
    if request.path == "/api/version":
        return _object({"version": "0.12.0"})
    if request.path == "/api/tags":
        return _object({"models": [{"name": LLAMA, "model": LLAMA, "size": 2019393189, "digest": "a80c"}]})
    body = json.loads(request.body)
    if request.path == "/api/pull":
        return _stream(_PULLING)
    if body["model"] != LLAMA:
        return _object({"error": f"model '{body['model']}' not found"}, status=404)
    match request.path:
        case "/api/embed":
            return _object({"model": LLAMA, "embeddings": [[0.5, 1.0] for _ in body["input"]], **_COUNTS})
        case "/api/generate":
            pieces = ["Because", " of ", body["prompt"]]
            last = {"response": "", "done": True, "done_reason": "stop", "context": [1, 2, 3]}
            return _stream([*({"response": piece, "done": False} for piece in pieces), {**last, **_COUNTS}])
        case "/api/chat":
            pieces = ["Because", " of ", body["messages"][-1]["content"], ""]
            messages = [
                {"message": {"role": "assistant", "content": piece}, "done": False} for piece in pieces
            ]
            return _stream([*messages[:-1], {**messages[-1], "done": True, "done_reason": "stop", **_COUNTS}])
    return _object({"error": "404 page not found"}, status=404)


@contextmanager
def an_ollama() -> Iterator[Service]:
    with a_service(answer) as service:
        yield service


def _object(value: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(value).encode(), headers=JSON)


def _stream(parts: Any) -> Reply:
    named = [part if "status" in part else {"model": LLAMA, "created_at": _AT, **part} for part in parts]
    return Reply(chunks=[json.dumps(part).encode() + b"\n" for part in named], headers=NDJSON)
