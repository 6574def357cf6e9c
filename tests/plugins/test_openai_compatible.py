"""openai_compatible against a server with a /v1 API: JSON, server-sent events and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from builders.services import Reply, Service, ServiceRequest, a_service
from builders.shipped import PluginResult, ask

JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 500,
    "total_tokens": 1500,
    "prompt_tokens_details": {"cached_tokens": 400},
}
MESSAGE = {"role": "assistant", "content": "Hello"}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1770544800,
    "model": "m-2026-01-01",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": USAGE,
}
PROMPT = {"prompt": "Hi"}


def json_reply(value: Any) -> Reply:
    return Reply(body=json.dumps(value).encode(), headers=JSON)


def refusal(status: int, headers: dict[str, str] | None = None, **error: str) -> Reply:
    return Reply(
        status=status, body=json.dumps({"error": error}).encode(), headers={**JSON, **(headers or {})}
    )


def chunk(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1770544800,
        "model": "m-2026-01-01",
    }
    return {**head, "choices": choices, "usage": None, **more}


def events(*parts: dict[str, Any], end: bool = True) -> list[bytes]:
    lines = [b": keep-alive\n\n", *(f"data: {json.dumps(part)}\n\n".encode() for part in parts)]
    return [*lines, b"data: [DONE]\n\n"] if end else lines


def call_plugin(
    reply_to: Callable[[ServiceRequest], Reply], command: str = "chat", payload: Any = None, **config: Any
) -> tuple[PluginResult, Service]:
    with a_service(reply_to) as service:
        settings = {"base_url": service.url + "/v1", "api_key": "canary", "model": "m", **config}
        response = ask("openai_compatible", command, config=settings, payload=payload or PROMPT)
    assert "canary" not in response.stderr + json.dumps(response.answer)
    return response, service


def test_a_prompt_becomes_a_conversation_and_the_response_is_the_result() -> None:
    """The key is in its header, and fields of the payload replace configured ones."""
    payload = {"prompt": "Hi", "system": "Be brief", "temperature": 1, "title": "no field of the API",
               "parameters": {"min_p": 0.1}}  # fmt: skip
    response, service = call_plugin(
        lambda _: json_reply(COMPLETION), "handle", payload, parameters={"temperature": 0, "seed": 7}
    )
    assert response.answer["result"] == COMPLETION
    assert response.events[0]["payload"] == {
        "text": "Hello",
        "model": "m-2026-01-01",
        "usage": USAGE,
        "cost": None,
    }
    (request,) = service.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer canary"
    assert json.loads(request.body) == {
        "model": "m", "temperature": 1, "seed": 7, "min_p": 0.1,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
    }  # fmt: skip


def test_a_stream_is_joined_to_the_same_response() -> None:
    """Contents, tool calls in pieces, several choices, and the counts at the end are joined."""
    first_call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    first = {"role": "assistant", "content": None, "tool_calls": [first_call]}
    rest = [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"a"', ": 1}")]
    parts = [
        chunk([{"index": 1, "delta": {"role": "assistant", "content": "Hel"}, "finish_reason": None}]),
        *(chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in (first, *rest)),
        chunk([{"index": 1, "delta": {"content": "lo"}, "finish_reason": None}]),
        chunk([{"index": 1, "delta": {}, "finish_reason": "stop"}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]),
        chunk([], usage=USAGE),
    ]
    response, service = call_plugin(lambda _: Reply(chunks=events(*parts), headers=EVENTS), stream=True)
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}]
    tools = {"role": "assistant", "content": None, "tool_calls": calls}
    assert response.answer["result"] == {
        **COMPLETION,
        "choices": [
            {"index": 0, "message": tools, "finish_reason": "tool_calls"},
            {"index": 1, "message": MESSAGE, "finish_reason": "stop"},
        ],
    }
    assert json.loads(service.requests[0].body)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_ends_early_is_tried_again(cut: bool) -> None:
    parts = events(chunk([{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]), end=False)
    response, _ = call_plugin(lambda _: Reply(chunks=parts, headers=EVENTS, cut=cut), stream=True)
    assert response.may_be_tried_again("cut off")


def test_an_error_within_a_stream_is_a_failure() -> None:
    broken = {"error": {"message": "the engine is overloaded", "type": "server_error"}}
    response, _ = call_plugin(lambda _: Reply(chunks=events(broken), headers=EVENTS), stream=True)
    assert response.may_be_tried_again("the engine is overloaded")


def test_a_server_without_streaming_is_understood() -> None:
    response, _ = call_plugin(lambda _: json_reply(COMPLETION), stream=True)
    assert response.answer["result"] == COMPLETION


def test_an_answer_in_one_piece_that_is_cut_off_is_tried_again() -> None:
    headers = {**JSON, "Content-Length": "100000"}
    response, _ = call_plugin(lambda _: Reply(body=b'{"id": 1}', headers=headers))
    assert response.may_be_tried_again("")


def test_prices_give_a_cost_in_the_result_and_in_the_answer() -> None:
    """The requested model decides the prices; tokens from the cache have a price of their own."""
    prices = {"m": {"input": 2, "output": 10, "cached_input": 0.5}}
    response, _ = call_plugin(lambda _: json_reply(COMPLETION), "handle", prices=prices)
    cost = (600 * 2 + 400 * 0.5 + 500 * 10) / 1_000_000
    assert response.answer["cost"] == response.answer["result"]["cost"] == pytest.approx(cost)
    assert response.events[0]["payload"]["cost"] == pytest.approx(cost)


@pytest.mark.parametrize(
    ("prices", "completion", "message"),
    [
        ({"other": {"input": 1}}, COMPLETION, "`prices` has no m"),
        ({"m": {"input": 1}}, {**COMPLETION, "usage": None}, "reports no tokens"),
    ],
)
def test_a_cost_that_is_not_known_is_not_guessed(prices: Any, completion: Any, message: str) -> None:
    response, _ = call_plugin(lambda _: json_reply(completion), prices=prices)
    assert "cost" not in response.answer
    assert message in response.answer["logs"][0]["message"]


def test_vectors_older_completions_and_models() -> None:
    data = {
        "object": "list",
        "data": [{"index": 0, "embedding": [0.5]}],
        "model": "e",
        "usage": {"prompt_tokens": 2},
    }
    config = {"embed_model": "e", "prices": {"e": {"input": 1}}}
    embedded, service = call_plugin(
        lambda _: json_reply(data), "embed", {"input": ["a"], "dimensions": 1}, **config
    )
    assert embedded.answer["result"] == {**data, "cost": pytest.approx(2e-6)}
    assert json.loads(service.requests[0].body) == {"model": "e", "input": ["a"], "dimensions": 1}
    text = {"object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    completed, service = call_plugin(lambda _: json_reply(text), "complete", {"prompt": "a", "max_tokens": 1})
    assert (completed.answer["result"], service.requests[0].path) == (text, "/v1/completions")
    models, service = call_plugin(lambda _: json_reply({"object": "list", "data": [{"id": "m"}]}), "models")
    assert models.answer["result"]["data"] == [{"id": "m"}]


@pytest.mark.parametrize("status", [401, 403])
def test_an_expired_or_revoked_key_is_permanent_and_not_shown(status: int) -> None:
    """A refused key is a fault of the configuration; it is masked even if the server repeats it."""
    reply = refusal(status, message="Incorrect API key provided: canary.", code="invalid_api_key")
    response, service = call_plugin(lambda _: reply)
    assert response.failed_for_good("check `api_key`")
    assert "provided: ***." in response.answer["error"]
    assert (response.exit_code, len(service.requests)) == (78, 1)


@pytest.mark.parametrize(
    ("reply", "retry"),
    [
        (refusal(400, message="Unrecognized request argument", type="invalid_request_error"), False),
        (refusal(404, message="The model `m` does not exist", code="model_not_found"), False),
        (refusal(429, message="Rate limit reached", type="requests", code="rate_limit_exceeded"), True),
        (refusal(429, message="You exceeded your quota", code="insufficient_quota"), False),
        (refusal(500, message="The server had an error"), True),
        (Reply(status=502, body=b"<html>Bad gateway</html>"), True),
        (Reply(status=529, body=b"overloaded"), True),
        (Reply(status=307, headers={"Location": "http://127.0.0.1:9/"}), False),
    ],
)
def test_a_refusal_is_tried_again_only_if_that_may_help(reply: Reply, retry: bool) -> None:
    """A rate limit passes, used-up credit does not; a redirect would get the key, so it is not followed."""
    response, service = call_plugin(lambda _: reply)
    assert response.kind == "error"
    assert response.answer["retry"] is retry
    assert len(service.requests) == 1


def retry_after(value: str, date: str | None = None) -> dict[str, str]:
    return {"Retry-After": value, **({"Date": date} if date else {})}


SERVER_TIME = datetime.now(UTC) + timedelta(hours=9)


@pytest.mark.parametrize(
    "headers",
    [
        retry_after("0"),
        {"retry-after-ms": "1"},
        retry_after(format_datetime(SERVER_TIME), format_datetime(SERVER_TIME)),
    ],
)
def test_a_short_wait_that_the_server_asks_for_is_kept_within_the_job(headers: dict[str, str]) -> None:
    """The wait is in seconds, in milliseconds, or until an instant of the server's clock."""
    replies = iter([refusal(429, headers, message="slow down"), refusal(503, headers, message="busy")])
    response, service = call_plugin(lambda _: next(replies, json_reply(COMPLETION)))
    assert response.answer["result"] == COMPLETION
    assert len(service.requests) == 3
    assert response.stderr.count("as the server asks") == 2


def test_a_long_wait_is_left_to_the_job_s_retries() -> None:
    response, service = call_plugin(lambda _: refusal(429, retry_after("3600"), message="slow down"))
    assert response.may_be_tried_again("to be tried again in 3600 s")
    assert len(service.requests) == 1


def test_a_server_that_never_stops_asking_to_wait_is_given_up() -> None:
    response, service = call_plugin(lambda _: refusal(429, retry_after("0"), message="slow down"))
    assert response.may_be_tried_again("slow down")
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    "config",
    [
        {"base_url": None},
        {"model": None},
        {"prices": [1]},
        {"prices": {"m": 5}},
        {"prices": {"m": {"input": "cheap"}}},
        {"prices": {"m": {"typo": 1}}},
        {"parameters": 5},
        {"timeout": -1},
    ],
)
def test_faults_of_the_configuration_end_with_status_78(config: dict[str, Any]) -> None:
    """A fault is reported before a request is sent and paid."""
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "m", **config}
    response = ask("openai_compatible", "chat", config=settings, payload=PROMPT)
    assert response.failed_for_good("`")
    assert response.exit_code == 78


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"error": "no"}'])
def test_an_answer_that_is_no_completion_is_a_failure(body: bytes) -> None:
    response, _ = call_plugin(lambda _: Reply(body=body))
    assert response.kind == "error"
