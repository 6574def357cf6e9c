"""ollama against a server with its protocol: NDJSON in chunks, and errors as the real server sends them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from builders.models import LLAMA, an_ollama
from builders.services import Reply, ServiceRequest, a_service
from builders.shipped import ask


def ndjson(*parts: Mapping[str, Any]) -> list[bytes]:
    return [json.dumps(part).encode() + b"\n" for part in parts]


def test_generate_returns_the_response_as_ollama_gives_it_without_streaming() -> None:
    """The result is one object in the native shape, with the joined text and the counts of the last part."""
    with an_ollama() as service:
        payload = {"prompt": "Why?", "system": "Be brief", "options": {"seed": 1}, "unknown": 1}
        config = {"base_url": service.url, "model": LLAMA, "options": {"seed": 2, "temperature": 0}}
        response = ask("ollama", "generate", config=config, payload=payload)
    assert response.answer["result"] == {
        "model": LLAMA, "created_at": "2026-05-23T12:00:00Z", "response": "Because of Why?", "done": True,
        "done_reason": "stop", "context": [1, 2, 3], "total_duration": 5, "load_duration": 1,
        "prompt_eval_count": 4, "prompt_eval_duration": 1, "eval_count": 3, "eval_duration": 2,
    }  # fmt: skip
    (request,) = service.requests
    assert json.loads(request.body) == {
        "model": LLAMA,
        "prompt": "Why?",
        "system": "Be brief",
        "options": {"seed": 1, "temperature": 0},
        "stream": True,
    }


def test_chat_joins_thinking_content_and_calls_of_tools() -> None:
    """The parts of a stream become one message."""

    def tool_call(name: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}}

    parts = ndjson(
        {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
        {"message": {"role": "assistant", "content": "", "thinking": "m"}, "done": False},
        {"message": {"role": "assistant", "content": "a", "tool_calls": [tool_call("x")]}, "done": False},
        {
            "message": {"role": "assistant", "content": "b", "tool_calls": [tool_call("y")]},
            "done": True,
            "eval_count": 2,
        },
    )
    # Chunks do not end at the ends of lines.
    content = b"".join(parts)
    with a_service(lambda _: Reply(chunks=[content[:70], content[70:75], content[75:]])) as service:
        payload = {"messages": [{"role": "user", "content": "hi"}], "model": LLAMA}
        response = ask("ollama", "chat", config={"base_url": service.url}, payload=payload)
    message = {
        "role": "assistant",
        "content": "ab",
        "thinking": "hmm",
        "tool_calls": [tool_call("x"), tool_call("y")],
    }
    assert response.answer["result"] == {"message": message, "done": True, "eval_count": 2}


@pytest.mark.parametrize(
    ("payload", "path", "text"),
    [
        ({"prompt": "Why?"}, "/api/generate", "Because of Why?"),
        ({"messages": [{"role": "user", "content": "Why?"}]}, "/api/chat", "Because of Why?"),
    ],
)
def test_handle_takes_a_prompt_or_messages_and_emits_the_text(
    payload: dict[str, Any], path: str, text: str
) -> None:
    with an_ollama() as service:
        response = ask("ollama", "handle", config={"base_url": service.url, "model": LLAMA}, payload=payload)
    assert [request.path for request in service.requests] == [path]
    assert response.events == [{"type": "ollama.done", "payload": {"text": text, "model": LLAMA}}]


def test_embeddings_and_the_list_of_models_are_passed_on() -> None:
    """For vectors `embed_model` is preferred to `model`."""
    with an_ollama() as service:
        config = {"base_url": service.url, "model": "other", "embed_model": LLAMA, "keep_alive": "1m"}
        embedded = ask("ollama", "embed", config=config, payload={"input": ["a", "b"]})
        models = ask("ollama", "models", config=config)
    assert embedded.answer["result"]["embeddings"] == [[0.5, 1.0], [0.5, 1.0]]
    assert json.loads(service.requests[0].body) == {"model": LLAMA, "input": ["a", "b"], "keep_alive": "1m"}
    assert [model["name"] for model in models.answer["result"]["models"]] == [LLAMA]


def test_pull_shows_its_progress_on_stderr() -> None:
    with an_ollama() as service:
        response = ask("ollama", "pull", config={"base_url": service.url}, payload={"model": "new"})
    assert response.answer["result"] == {"model": "new", "status": "success"}
    assert response.stderr.splitlines() == [
        "pulling manifest",
        "pulling 667b0c1932bc 0 % of 2000 MB",
        "pulling 667b0c1932bc 100 % of 2000 MB",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]


@pytest.mark.parametrize(
    ("error", "retry"),
    [("pull model manifest: file does not exist", False), ("max retries exceeded: EOF", True)],
)
def test_a_download_that_fails_in_its_stream_is_a_failure(error: str, retry: bool) -> None:
    """The status is 200 by then; only an unknown model is a permanent failure."""
    chunks = ndjson({"status": "pulling manifest"}, {"error": error})
    with a_service(lambda _: Reply(chunks=chunks)) as service:
        response = ask("ollama", "pull", config={"base_url": service.url}, payload={"model": "new"})
    assert response.answer["error"] == f"new: {error}"
    assert response.answer["retry"] is retry


def test_a_missing_model_is_permanent_and_names_our_own_command() -> None:
    """The advised command is complete, with the configured name of the plugin."""
    with an_ollama() as service:
        response = ask(
            "ollama", "generate", config={"base_url": service.url, "model": "no'ne"}, payload={"prompt": "x"}
        )
        health = ask("ollama", "health", config={"base_url": service.url, "model": "none"})
    assert response.failed_for_good("""ductile run it pull --payload '{"model": "no'"'"'ne"}'.""")
    assert health.failed_for_good("""ductile run it pull --payload '{"model": "none"}'.""")
    assert health.exit_code == 78


@pytest.mark.parametrize("cut", [True, False])
def test_an_answer_that_ends_early_is_tried_again(cut: bool) -> None:
    """An incomplete answer or download is no result, whether the connection was cut or closed."""
    chunks = ndjson({"response": "Beca", "status": "pulling", "done": False})
    with a_service(lambda _: Reply(chunks=chunks, cut=cut)) as service:
        config = {"base_url": service.url, "model": LLAMA}
        assert ask("ollama", "generate", config=config, payload={"prompt": "x"}).may_be_tried_again("cut off")
        assert ask("ollama", "pull", config=config).may_be_tried_again("cut off")


@pytest.mark.parametrize(
    ("status", "body", "retry"),
    [
        (503, b'{"error":"server busy, please try again.  maximum pending requests exceeded"}', True),
        (500, b'{"error":"llama runner process has terminated"}', True),
        (400, b'{"error":"\\"x\\" does not support chat"}', False),
        (401, b'{"error":"unauthorized"}', False),
        (301, b"", False),
    ],
)
def test_a_refusal_is_tried_again_only_if_that_may_help(status: int, body: bytes, retry: bool) -> None:
    with a_service(lambda _: Reply(status=status, body=body)) as service:
        response = ask(
            "ollama", "generate", config={"base_url": service.url, "model": LLAMA}, payload={"prompt": "x"}
        )
    assert response.kind == "error"
    assert response.answer["retry"] is retry


def test_a_stream_that_stalls_ends_before_the_job_s_deadline() -> None:
    """The plugin reports the error instead of being killed, however slowly the server sends."""
    released = threading.Event()

    def stall(_: ServiceRequest) -> Reply:
        def parts() -> Iterator[bytes]:
            yield from ndjson({"response": "Beca", "done": False})
            released.wait(60)

        return Reply(chunks=parts())

    with a_service(stall) as service:
        config = {"base_url": service.url, "model": LLAMA}
        late = ask("ollama", "generate", config=config, payload={"prompt": "x"}, seconds=2)
        silent = ask("ollama", "generate", config={**config, "timeout": 0.2}, payload={"prompt": "x"})
        released.set()
    assert late.may_be_tried_again("before the job's deadline")
    assert silent.may_be_tried_again("nothing received for 0.2 s")


def test_a_key_is_sent_and_never_shown() -> None:
    """The key is masked also when the server repeats it in its refusal."""

    def refuse(request: ServiceRequest) -> Reply:
        return Reply(status=401, body=f'{{"error": "bad {request.headers["authorization"]}"}}'.encode())

    with a_service(refuse) as service:
        response = ask("ollama", "models", config={"base_url": service.url, "api_key": "canary"})
    assert response.failed_for_good("answers 401: bad Bearer ***")
    assert "canary" not in response.stderr + json.dumps(response.answer)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"base_url": "ftp://x"}, "`base_url`"),
        ({"base_url": "http://a:b@c"}, "password"),
        ({"base_url": "http://a\r\nb"}, "`base_url`"),
        ({"base_url": 5}, "`base_url`"),
        ({"timeout": 0}, "`timeout`"),
        ({"options": [1]}, "`options`"),
        ({"model": 5}, "`model`"),
        ({"model": None}, "`model` is missing"),
        ({"api_key": "a\nb"}, "cannot be sent"),
    ],
)
def test_faults_of_the_configuration_end_with_status_78(config: dict[str, Any], message: str) -> None:
    response = ask(
        "ollama",
        "generate",
        config={"base_url": "http://127.0.0.1:9", "model": "m", **config},
        payload={"prompt": "x"},
    )
    assert response.failed_for_good(message)
    assert response.exit_code == 78


@pytest.mark.parametrize(
    ("command", "payload", "message"),
    [
        ("generate", {}, "`prompt`"),
        ("chat", {"messages": ["hi"]}, "`messages`"),
        ("embed", {"input": 5}, "`input`"),
        ("handle", {"text": "hi"}, "neither `prompt` nor `messages`"),
    ],
)
def test_a_payload_without_what_is_needed_is_refused(
    command: str, payload: dict[str, Any], message: str
) -> None:
    """An incomplete payload is a fault of the caller, not of the configuration."""
    response = ask("ollama", command, config={"model": "m"}, payload=payload)
    assert response.failed_for_good(message)
    assert response.exit_code == 0


@pytest.mark.parametrize("body", [b"<html>", b"5\n"])
def test_a_server_that_is_no_ollama_is_reported(body: bytes) -> None:
    with a_service(lambda _: Reply(body=body)) as service:
        config = {"base_url": service.url, "model": "m"}
        assert ask("ollama", "generate", config=config, payload={"prompt": "x"}).kind == "error"
