#!/usr/bin/env python3
"""The ollama plugin: language models on a server of your own. Results keep the shape of Ollama's API.

Answers are read as a stream, so that a server that has stopped is told from a slow model, and joined to the
one response that the API gives without streaming.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_http import Client, HttpFailure, Response, before_deadline, parse_json
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from ductile_settings import read_number, read_text

BASE_URL = "http://localhost:11434"
NOT_FOUND = 404
#: Seconds without data. Loading a large model from a slow disk takes minutes, in which nothing is sent.
TIMEOUT = 300.0
#: Parts of a stream that are texts or lists to be joined, in `generate` and in the message of `chat`.
JOINED = ("response", "content", "thinking", "tool_calls")
GENERATE = (
    "prompt",
    "system",
    "suffix",
    "images",
    "format",
    "options",
    "think",
    "keep_alive",
    "template",
    "raw",
)
CHAT = ("messages", "tools", "format", "options", "think", "keep_alive")
EMBED = ("input", "truncate", "dimensions", "options", "keep_alive")
#: In the error of a download of a model that the registry does not have.
NO_SUCH_MODEL = ("file does not exist", "invalid model name")
#: Seconds between two lines of progress on the same layer.
PROGRESS_EVERY = 2.0

plugin = Plugin()


@plugin.command
def generate(request: Request) -> dict[str, Any]:
    if not isinstance(request.payload.get("prompt"), str):
        raise Failure("`prompt` is missing in the payload", retry=False)
    return complete(request, "/api/generate", GENERATE)


@plugin.command
def chat(request: Request) -> dict[str, Any]:
    messages = request.payload.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Failure("`messages` has to be a list of objects with `role` and `content`", retry=False)
    return complete(request, "/api/chat", CHAT)


@plugin.command
def handle(request: Request) -> dict[str, Any]:
    given = request.payload.keys() & {"messages", "prompt"}
    if not given:
        raise Failure("the payload has neither `prompt` nor `messages`", retry=False)
    result = chat(request) if "messages" in given else generate(request)
    text = result.get("response") or result.get("message", {}).get("content", "")
    request.emit("ollama.done", {"text": text, "model": result.get("model")})
    return result


@plugin.command
def embed(request: Request) -> Any:
    if not isinstance(request.payload.get("input"), (str, list)):
        raise Failure("`input` has to be a text or a list of texts", retry=False)
    preferred = read_text(request.config, "embed_model")
    body = body_of(request, EMBED, preferred)
    with before_deadline(request), opened(request, "/api/embed", body) as response:
        return response.json()


@plugin.command
def models(request: Request) -> Any:
    with before_deadline(request), client(request).open("GET", "/api/tags") as response:
        return response.json()


@plugin.command
def pull(request: Request) -> dict[str, Any]:
    """A retry continues where the download stopped: the server keeps the parts that it has."""
    name = model_of(request)
    last: dict[str, Any] = {}
    progress = Progress()
    with (
        before_deadline(request),
        client(request).open("POST", "/api/pull", {"model": name, "stream": True}) as response,
    ):
        for last in objects(response, name):
            progress.show(last)
    if last.get("status") != "success":
        raise Failure(f"the download of {name} was cut off; a retry continues it")
    return {"model": name, "status": "success"}


@plugin.command
def health(request: Request) -> str:
    with before_deadline(request):
        with client(request).open("GET", "/api/version") as response:
            version = response.json().get("version")
        with client(request).open("GET", "/api/tags") as response:
            known = {str(each.get("name")) for each in response.json().get("models") or []}
    for key in ("model", "embed_model"):
        name = read_text(request.config, key)
        if name is not None and not known & {name, f"{name}:latest"}:
            raise ConfigFailure(missing(request, name))
    return f"healthy: Ollama {version}, {len(known)} models"


def complete(request: Request, path: str, fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the response to a prompt or conversation, joined from its stream."""
    body = {**body_of(request, fields), "stream": True}
    answer: dict[str, Any] = {}
    with before_deadline(request), opened(request, path, body) as response:
        for part in objects(response, body["model"]):
            join(answer, part)
            if part.get("done"):
                return answer
    raise Failure(f"the answer of {body['model']} was cut off: the server closed the connection")


def join(answer: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part of the stream: texts and calls of tools grow, the rest is that of the last part."""
    for name, value in part.items():
        before = answer.get(name)
        if name == "message" and isinstance(value, dict):
            join(answer.setdefault("message", {}), value)
        elif name in JOINED and isinstance(value, type(before)):
            answer[name] = before + value
        else:
            answer[name] = value


def objects(response: Response, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream. An error in it is a `Failure`."""
    for line in response.lines():
        part = parse_json(line, response.url)
        if not isinstance(part, dict):
            raise Failure(f"{response.url} sends {type(part).__name__} instead of an object")
        if "error" in part:
            message = str(part["error"])
            raise Failure(f"{name}: {message}", retry=not any(text in message for text in NO_SUCH_MODEL))
        yield part


class Progress:
    """Shows the progress of a download on stderr, which `job logs -f` follows."""

    def __init__(self) -> None:
        self._status = ""
        self._shown_at = 0.0

    def show(self, part: dict[str, Any]) -> None:
        status, total, done = str(part.get("status", "")), part.get("total"), part.get("completed")
        finished = isinstance(total, int) and done == total
        due = time.monotonic() - self._shown_at >= PROGRESS_EVERY
        if status == self._status and not due and not finished:
            return
        self._status, self._shown_at = status, time.monotonic()
        amount = ""
        if isinstance(total, int) and isinstance(done, int) and total > 0:
            amount = f" {100 * done // total} % of {total / 1e6:.0f} MB"
        sys.stderr.write(f"{status}{amount}\n")


@contextmanager
def opened(request: Request, path: str, body: dict[str, Any]) -> Iterator[Response]:
    """Send the request; a model that the server does not have is a permanent failure with its remedy."""
    try:
        with client(request).open("POST", path, body) as response:
            yield response
    except HttpFailure as failure:
        if failure.status == NOT_FOUND and "model" in str(failure):
            raise Failure(missing(request, body["model"]), retry=False) from None
        raise


def missing(request: Request, name: str) -> str:
    payload = shlex.quote(json.dumps({"model": name}))
    return (
        f"the server has no model {name}. "
        f"Download it: ductile run {request.instance} pull --payload {payload}. "
        f"See which it has: ductile run {request.instance} models"
    )


def client(request: Request) -> Client:
    key = read_text(request.config, "api_key") or ""
    return Client(
        read_text(request.config, "base_url", BASE_URL) or BASE_URL,
        request=request,
        timeout=read_number(request.config, "timeout", TIMEOUT),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        secret=key,
    )


def body_of(request: Request, fields: tuple[str, ...], preferred: str | None = None) -> dict[str, Any]:
    """Return what the payload asks for, over the configuration."""
    given = {name: request.payload[name] for name in fields if request.payload.get(name) is not None}
    options = request.config.get("options") or {}
    if not isinstance(options, dict):
        raise ConfigFailure("`options` in the plugin's config has to be a map, such as {temperature: 0}")
    own = given.get("options") or {}
    if not isinstance(own, dict):
        raise Failure("`options` has to be an object", retry=False)
    body = {"model": model_of(request, preferred), **given}
    if options or own:
        body["options"] = {**options, **own}
    if "keep_alive" in request.config:
        body.setdefault("keep_alive", request.config["keep_alive"])
    return body


def model_of(request: Request, preferred: str | None = None) -> str:
    name = request.payload.get("model") or preferred or read_text(request.config, "model")
    if not isinstance(name, str):
        raise ConfigFailure("`model` is missing: give it in the payload or in the plugin's config")
    return name


plugin.run()
