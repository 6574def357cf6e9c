#!/usr/bin/env python3
"""The openai_compatible plugin: language models behind a /v1 API, of whichever maker.

Results are the server's responses. With `stream` the parts are joined to the response that there would be
without it. With `prices` a response also has its cost, and Ductile learns it too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_http import REFUSED_KEY, Client, HttpFailure, Response, before_deadline, parse_json
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from ductile_settings import read_number, read_text

#: Seconds without data. Without streaming that is the time for the whole answer.
TIMEOUT = 300.0
#: Fields of a payload that are passed on; others come from `parameters`.
COMMON = (
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "n",
    "seed",
    "user",
    "presence_penalty",
    "frequency_penalty",
)
CHAT = (
    *COMMON, "max_completion_tokens", "response_format", "tools", "tool_choice", "parallel_tool_calls",
    "reasoning_effort", "logprobs", "top_logprobs",
)  # fmt: skip
COMPLETE = (*COMMON, "prompt", "suffix", "echo", "logprobs", "best_of")
EMBED = ("input", "dimensions", "encoding_format", "user")
#: A refusal that time does not cure, although its status is that of a rate limit.
NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
#: Prices are for this many tokens.
PER = 1_000_000
#: Texts in the parts of a stream that grow; others are sent once.
GROWING = ("content", "refusal", "reasoning_content", "reasoning", "arguments", "text")

plugin = Plugin()


@plugin.command
def chat(request: Request) -> dict[str, Any]:
    body = {**fields(request, CHAT), "messages": messages_of(request)}
    return ask(request, "/chat/completions", body)


@plugin.command
def handle(request: Request) -> dict[str, Any]:
    result = chat(request)
    choices = result.get("choices") or [{}]
    text = (choices[0].get("message") or {}).get("content") or ""
    done = {
        "text": text,
        "model": result.get("model"),
        "usage": result.get("usage"),
        "cost": result.get("cost"),
    }
    request.emit("openai_compatible.done", done)
    return result


@plugin.command
def complete(request: Request) -> dict[str, Any]:
    if not isinstance(request.payload.get("prompt"), str):
        raise Failure("`prompt` is missing in the payload", retry=False)
    return ask(request, "/completions", fields(request, COMPLETE))


@plugin.command
def embed(request: Request) -> dict[str, Any]:
    if not isinstance(request.payload.get("input"), (str, list)):
        raise Failure("`input` has to be a text or a list of texts", retry=False)
    body = fields(request, EMBED, read_text(request.config, "embed_model"))
    with before_deadline(request), opened(request, "POST", "/embeddings", body) as response:
        return with_cost(request, body, read_object(response))


@plugin.command
def models(request: Request) -> dict[str, Any]:
    with before_deadline(request), opened(request, "GET", "/models") as response:
        return read_object(response)


@plugin.command
def health(request: Request) -> str:
    read_prices(request)
    return f"healthy, {len(models(request).get('data') or [])} models"


def messages_of(request: Request) -> list[dict[str, Any]]:
    payload = request.payload
    messages = payload.get("messages")
    if messages is None and isinstance(payload.get("prompt"), str):
        system = [{"role": "system", "content": payload["system"]}] if payload.get("system") else []
        return [*system, {"role": "user", "content": payload["prompt"]}]
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Failure("the payload needs `prompt`, or `messages` as a list of objects", retry=False)
    return messages


def fields(request: Request, names: tuple[str, ...], preferred: str | None = None) -> dict[str, Any]:
    """What the payload asks for, over the configuration."""
    own = request.payload.get("parameters") or {}
    configured = request.config.get("parameters") or {}
    if not isinstance(configured, dict):
        raise ConfigFailure("`parameters` in the plugin's config has to be a map, such as {temperature: 0}")
    if not isinstance(own, dict):
        raise Failure("`parameters` has to be an object", retry=False)
    given = {name: request.payload[name] for name in names if request.payload.get(name) is not None}
    return {**configured, **own, **given, "model": model_of(request, preferred)}


def model_of(request: Request, preferred: str | None) -> str:
    name = request.payload.get("model") or preferred or read_text(request.config, "model")
    if not isinstance(name, str):
        raise ConfigFailure("`model` is missing: give it in the payload or in the plugin's config")
    return name


def ask(request: Request, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the completion with its cost, streamed or not."""
    read_prices(request)  # a mistake in them is found before anything has been paid
    stream = request.config.get("stream") is True
    body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    with before_deadline(request), opened(request, "POST", path, body) as response:
        # A server that does not know streaming answers in one piece.
        streamed = "text/event-stream" in response.headers.get("content-type", "")
        return with_cost(request, body, join(response) if streamed else read_object(response))


@contextmanager
def opened(request: Request, method: str, path: str, body: Any = None) -> Iterator[Response]:
    try:
        with client(request).open(method, path, body) as response:
            yield response
    except HttpFailure as failure:
        if failure.status in REFUSED_KEY:
            words = "check `api_key` in the plugin's config, and what the key may do"
            raise ConfigFailure(f"{failure}; {words}") from None
        if failure.code in NO_CREDIT:
            raise Failure(f"{failure} ({failure.code})", retry=False) from None
        raise


def client(request: Request) -> Client:
    key = read_text(request.config, "api_key") or ""
    return Client(
        read_text(request.config, "base_url") or "",
        request=request,
        timeout=read_number(request.config, "timeout", TIMEOUT),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        secret=key,
    )


def read_object(response: Response) -> dict[str, Any]:
    found = response.json()
    if not isinstance(found, dict):
        raise Failure(f"{response.url} answers with {type(found).__name__} instead of an object")
    check_error(found, response.url)
    return found


def check_error(part: dict[str, Any], url: str) -> None:
    """Some servers report an error with status 200, and all of them do within a stream."""
    error = part.get("error")
    if error:
        text = error.get("message", error) if isinstance(error, dict) else error
        raise Failure(f"{url} reports an error: {text}")


# ---------------------------------------------------------------------------------------------- streams


def join(response: Response) -> dict[str, Any]:
    """Join the server-sent events of a completion to the object that there is without streaming."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    ended = False
    for part in events(response):
        if part is None:
            ended = True
            break
        for choice in part.pop("choices", None) or []:
            join_choice(choices.setdefault(choice.get("index", 0), {}), choice)
        answer |= {name: value for name, value in part.items() if value is not None}
    if not choices or not (ended or all(choice.get("finish_reason") for choice in choices.values())):
        raise Failure("the answer was cut off: the server closed the connection")
    answer["object"] = str(answer.get("object", "")).removesuffix(".chunk")
    return {**answer, "choices": [choices[index] for index in sorted(choices)]}


def events(response: Response) -> Iterator[dict[str, Any] | None]:
    """Yield the objects of a stream, and None at its regular end."""
    for line in response.lines():
        if not line.startswith(b"data:"):
            continue  # comments that keep the connection open, names of events
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            yield None
            return
        part = parse_json(data, response.url)
        if isinstance(part, dict):
            check_error(part, response.url)
            yield part


def join_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    delta = part.get("delta")
    if isinstance(delta, dict):
        grow(choice.setdefault("message", {}), delta)
    rest = {name: value for name, value in part.items() if name != "delta" and value is not None}
    grow(choice, rest)


def grow(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        before = whole.get(name)
        if name == "tool_calls" and isinstance(value, list):
            grow_calls(whole.setdefault(name, []), value)
        elif name == "function" and isinstance(value, dict):
            grow(whole.setdefault(name, {}), value)
        elif name in GROWING and isinstance(before, str) and isinstance(value, str):
            whole[name] = before + value
        elif value is not None or name not in whole:
            whole[name] = value


def grow_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Parts of a call have its index, and only the first has its id."""
    for part in parts:
        index = part.get("index", len(calls))
        while len(calls) <= index:
            calls.append({})
        grow(calls[index], {name: value for name, value in part.items() if name != "index"})


# ------------------------------------------------------------------------------------------------ costs


def read_prices(request: Request) -> dict[str, dict[str, float]]:
    """By model: what a million tokens cost, as `input`, `output` and `cached_input`."""
    prices = request.config.get("prices") or {}
    if not isinstance(prices, dict):
        raise ConfigFailure("`prices` in the plugin's config has to be a map of models")
    for model, price in prices.items():
        numbers = price.values() if isinstance(price, dict) else [None]
        known = isinstance(price, dict) and price.keys() <= {"input", "output", "cached_input"}
        valid = all(
            isinstance(each, (int, float)) and not isinstance(each, bool) and each >= 0 for each in numbers
        )
        if not known or not valid:
            words = "has to be a map with `input`, `output` and perhaps `cached_input`, each a number"
            raise ConfigFailure(f"`prices.{model}` in the plugin's config {words}")
    return prices


def with_cost(request: Request, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    prices = read_prices(request)
    price = prices.get(body["model"]) or prices.get(str(answer.get("model")))
    if not prices:
        return answer
    usage = answer.get("usage")
    if price is None or not isinstance(usage, dict):
        lacking = "the server reports no tokens" if price else f"`prices` has no {body['model']}"
        request.log(f"the cost is not known: {lacking}", "warn")
        return answer
    cost = cost_of(usage, price)
    request.report_cost(cost)
    return {**answer, "cost": cost}


def cost_of(usage: dict[str, Any], price: dict[str, float]) -> float:
    asked, said = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
    cached = min(asked, tokens(usage.get("prompt_tokens_details") or {}, "cached_tokens"))
    inward = price.get("input", 0)
    total = (
        (asked - cached) * inward + cached * price.get("cached_input", inward) + said * price.get("output", 0)
    )
    return round(total / PER, 10)


def tokens(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0


plugin.run()
