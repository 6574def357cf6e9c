"""Incoming webhooks, on real sockets and a real store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.jobs import START, Clock, ok
from builders.stores import claim_one, open_sqlite, settle
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject
from ductile.core.webhooks.signatures import (
    GITHUB,
    SLACK,
    STANDARD,
    STRIPE,
    SignatureScheme,
    sign_body,
    signed_headers,
)
from ductile.engine.engine import Engine
from ductile.http.server import Listener, ListenerLimits
from ductile.operations.context import OperationContext
from ductile.store.port import Priority, Store
from ductile.store.session import Session
from ductile.store.sqlite.store import SqliteStore
from ductile.struct import replace
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent
from ductile.webhooks.server import UNVERIFIED_BYTES, WebhookApplication

ENDPOINTS = """
  - {path: /hook/plain, plugin: p, secret_ref: shared, max_body_size: 1000, delivery_header: X-Delivery}
  - {path: /hook/custom, name: named, plugin: p, command: poll, secret_ref: shared, signature_header: X-Sig}
  - {path: /hook/github, plugin: p, secret_ref: shared, preset: github}
  - {path: /hook/gitlab, plugin: p, secret_ref: shared, preset: gitlab}
  - {path: /hook/stripe, plugin: p, secret_ref: shared, preset: stripe}
  - {path: /hook/slack, plugin: p, secret_ref: shared, preset: slack}
  - {path: /hook/standard, plugin: p, secret_ref: shared, preset: standard-webhooks}
  - {path: /hook/line, pipeline: line, secret_ref: shared, preset: github}
  - {path: /hook/event, event: thing.happened, secret_ref: shared, preset: github}
"""
PIPELINES = """
pipelines:
  - name: line
    on: line.wanted
    execution_mode: synchronous
    if: {path: payload.action, op: neq, value: closed}
    steps: [{uses: p}]
  - {name: first, on: thing.happened, steps: [{uses: p}]}
  - {name: second, on: thing.happened, steps: [{uses: p}]}
"""
SECRET = "a-shared-canary"
HEADER = "X-Hub-Signature-256"


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.raw)
        return decoded


@dataclass(slots=True)
class ListenerUnderTest:
    store: Store
    clock: Clock
    port: int
    snapshot: Snapshot
    listener: Listener = field(init=False)
    emitted: list[SignalEvent] = field(default_factory=list)

    async def post(self, path: str, body: bytes, *, method: str = "POST", **headers: str) -> Reply:
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request(method, path, body, {"Content-Length": str(len(body)), **header_fields})

    async def post_signed(self, path: str, body: bytes, secret: str = SECRET, **headers: str) -> Reply:
        return await self.post(path, body, **{HEADER: sign_body(secret, body)}, **headers)

    async def request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return await self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    async def raw(self, data: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                status_line, *header_lines = head.decode("latin-1").split("\r\n")
                response_headers = dict(line.lower().split(": ", 1) for line in header_lines if line)
                content = await reader.readexactly(int(response_headers["content-length"]))
        finally:
            writer.close()
        return Reply(int(status_line.split()[1]), response_headers, content)

    async def event(self, job_id: str) -> Any:
        job = await self.store.get_job(job_id)
        assert job is not None
        assert job.source_event_id is not None
        return await self.store.get_event(job.source_event_id)

    async def count(self) -> int:
        return (await self.store.queue_counts()).depth

    def refusals(self) -> list[Any]:
        return [event.data["status"] for event in self.emitted if event.signal is Signal.WEBHOOK_REFUSED]


def a_snapshot(directory: Path, endpoints: str = ENDPOINTS) -> Snapshot:
    tokens = f"tokens: [{{name: shared, key: {SECRET}}}]\n"
    text = f"{tokens}{PIPELINES}plugins: {{p: {{}}}}\nwebhooks:\n  endpoints:\n{endpoints}"
    return compile_snapshot(loaded(a_config(directory, text)), a_discovery(directory, a_manifest("p")))


@asynccontextmanager
async def running_listener(
    directory: Path,
    *,
    snapshot: Snapshot | None = None,
    body_seconds: float = 10.0,
    unverified_bytes: int = UNVERIFIED_BYTES,
    engine: Engine | None = None,
) -> AsyncIterator[ListenerUnderTest]:
    clock = Clock()
    store = open_sqlite(directory / "state.db", clock=clock, rng=Random(1))
    harness = ListenerUnderTest(store, clock, 0, snapshot or a_snapshot(directory))
    signals = SignalBus()
    signals.subscribe(harness.emitted.append)
    context = OperationContext(
        store=store, snapshot=lambda: harness.snapshot, now=clock, rng=Random(2), engine=engine
    )
    application = WebhookApplication(
        context, signals, body_seconds=body_seconds, unverified_bytes=unverified_bytes
    )
    listener = harness.listener = Listener("webhooks", "127.0.0.1:0", application, ListenerLimits())
    (address,) = await listener.start()
    harness.port = int(address.rpartition(":")[2])
    try:
        yield harness
    finally:
        await listener.stop(1)
        await store.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ListenerUnderTest]:
    async with running_listener(tmp_path) as harness:
        yield harness


async def test_a_signed_request_is_a_job_on_disk(harness: ListenerUnderTest) -> None:
    """The response is 202 with the job id; the event is `webhook.<name>` and carries the object."""
    reply = await harness.post_signed("/hook/plain", b'{"n": 36893488147419103233}')
    assert reply.status == 202
    job = await harness.store.get_job(reply.body["job_id"])
    assert job is not None
    assert (job.plugin, job.command, job.submitted_by, job.submitted_detail) == (
        "p", "handle", "webhook", "plain",
    )  # fmt: skip
    event = await harness.event(job.id)
    assert (event.type, event.source, event.payload) == ("webhook.plain", "webhook", {"n": 2**65 + 1})


@pytest.mark.parametrize("form", ["sha256={}", "{}", "SHA"])
async def test_both_forms_of_the_signature_are_accepted(harness: ListenerUnderTest, form: str) -> None:
    """The header has `sha256=<hex>` or only the hex digits."""
    digits = sign_body(SECRET, b"{}").removeprefix("sha256=")
    signature = digits.upper() if form == "SHA" else form.format(digits)
    assert (await harness.post("/hook/plain", b"{}", **{HEADER: signature})).status == 202


async def test_unsigned_requests_learn_nothing(harness: ListenerUnderTest) -> None:
    """The response is 403 without details for every mistake, and no job is created."""
    signature = sign_body(SECRET, b"{}")
    replies = [
        await harness.post("/hook/plain", b"{}"),
        await harness.post("/hook/plain", b"{}", **{HEADER: ""}),
        await harness.post("/hook/plain", b"{}", **{HEADER: "sha256=" + "0" * 64}),
        await harness.post("/hook/plain", b"{} ", **{HEADER: signature}),
        await harness.post("/hook/plain", b"{}", **{HEADER: f"{signature}, {signature}"}),
        await harness.post("/hook/plain", b"{}", **{"X-Hub-Signature": signature}),
        await harness.post_signed("/hook/plain", b"{}", secret="wrong"),
        await harness.post("/hook/plain", b"{}", **{HEADER: signature[:-1]}),
    ]
    assert {reply.status for reply in replies} == {403}
    assert len({reply.raw for reply in replies}) == 1
    assert replies[0].body["message"] == "denied"
    assert await harness.count() == 0
    reasons = [event.data["reason"] for event in harness.emitted if event.signal is Signal.WEBHOOK_REFUSED]
    assert [str(reason).partition(":")[0] for reason in reasons] == [
        "there is no header x-hub-signature-256",
        *["the signature does not fit"] * 4,
        "there is no header x-hub-signature-256",
        *["the signature does not fit"] * 2,
    ], "the log says what was wrong"


async def test_paths_and_methods(harness: ListenerUnderTest) -> None:
    """An unknown path is 404, another method 405."""
    assert (await harness.post_signed("/hook/plain/", b"{}")).status == 404
    assert (await harness.post_signed("/", b"{}")).status == 404
    assert (await harness.post_signed("/hook/plain?x=1", b"{}")).status == 202
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        reply = await harness.post("/hook/plain", b"", method=method)
        assert (reply.status, reply.headers["allow"]) == (405, "post")
    assert (await harness.post("/healthz", b"{}")).status == 405


async def test_a_body_above_the_limit_is_refused(harness: ListenerUnderTest) -> None:
    """The response is 413, also for a wrong or missing Content-Length."""
    large = b'"' + b"x" * 1000 + b'"'
    assert (await harness.post_signed("/hook/plain", large)).status == 413
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (large[:600], large[600:]))
    head = {"Transfer-Encoding": "chunked", HEADER: sign_body(SECRET, large)}
    assert (await harness.request("POST", "/hook/plain", chunks + b"0\r\n\r\n", head)).status == 413
    wrong_length = {"Content-Length": "99999999", HEADER: sign_body(SECRET, b"{}")}
    assert (await harness.request("POST", "/hook/plain", b"{}", wrong_length)).status == 413
    assert await harness.count() == 0


async def test_a_body_at_the_limit_is_accepted_chunked_or_not(harness: ListenerUnderTest) -> None:
    full = b'"' + b"x" * 998 + b'"'
    assert (await harness.post_signed("/hook/plain", full)).status == 202
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(full), full)
    head = {"Transfer-Encoding": "chunked", HEADER: sign_body(SECRET, full)}
    assert (await harness.request("POST", "/hook/plain", chunked, head)).status == 202


async def test_slow_bodies_time_out(tmp_path: Path) -> None:
    async with running_listener(tmp_path, body_seconds=0.2) as harness:
        reply = await harness.request("POST", "/hook/plain", b"{", {"Content-Length": "2"})
        assert reply.status == 408


async def test_a_body_shorter_than_declared_is_no_job(tmp_path: Path) -> None:
    async with running_listener(tmp_path) as harness:
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        writer.write(b"POST /hook/plain HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{}")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await harness.post("/healthz", b"", method="GET")).status == 200
        assert await harness.count() == 0


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"[1, 2]", {"body": [1, 2]}),
        (b"null", {"body": None}),
        (b"payload=%7B%7D", {"body": "payload=%7B%7D"}),
        ("grüß".encode(), {"body": "grüß"}),
        (b"", {"body": ""}),
        (b"\xff\xfe", {"body": "//4=", "encoding": "base64"}),
        (b'{"a": NaN}', {"body": '{"a": NaN}'}),
        (b"[" * 900, {"body": "[" * 900}),
        (b"[" * 400 + b"]" * 400, {"body": "[" * 400 + "]" * 400}),
        (b'{"a":' * 150 + b"1" + b"}" * 150, None),
    ],
)
async def test_any_other_body_is_under_body(
    harness: ListenerUnderTest, body: bytes, payload: JsonObject | None
) -> None:
    """A JSON object is the payload; other bodies are `{"body": …}`."""
    reply = await harness.post_signed("/hook/plain", body)
    assert reply.status == 202
    event = await harness.event(reply.body["job_id"])
    assert event.payload == (json.loads(body) if payload is None else payload)


async def test_lone_surrogates_do_no_harm(harness: ListenerUnderTest) -> None:
    reply = await harness.post_signed("/hook/plain", b'{"a": "\\ud800"}')
    assert reply.status == 202
    assert await harness.event(reply.body["job_id"])


async def test_headers_are_passed_without_credentials(harness: ListenerUnderTest) -> None:
    """Names are in lower case; credentials and the signature are left out."""
    reply = await harness.post_signed(
        "/hook/plain",
        b"{}",
        X_GitHub_Event="push",
        Authorization="Bearer canary",
        Cookie="canary",
        X_Gitlab_Token="canary",
        X_Api_Key="canary",
        Proxy_Authorization="canary",
        X_Hub_Signature="sha1=canary",
    )
    headers = (await harness.event(reply.body["job_id"])).headers
    assert headers["x-github-event"] == "push"
    assert headers["host"] == "localhost"
    assert "canary" not in json.dumps(headers)
    assert HEADER.lower() not in headers


async def test_a_redelivery_is_not_run_twice(harness: ListenerUnderTest) -> None:
    """The delivery id in `delivery_header` is recognised while the job waits and runs, and after its
    success.
    """
    first = await harness.post_signed("/hook/plain", b"{}", X_Delivery="d1")
    redelivery = await harness.post_signed("/hook/plain", b'{"other": 1}', X_Delivery=" d1 ")
    assert (redelivery.status, redelivery.body["job_id"], redelivery.body["deduplicated"]) == (
        202,
        first.body["job_id"],
        True,
    )
    assert (await harness.post_signed("/hook/plain", b"{}", X_Delivery="d2")).body["job_id"] != first.body[
        "job_id"
    ]
    job = await claim_one(harness.store)
    assert job.dedupe_key == "delivery:/hook/plain:d1"
    await settle(harness.store, job, ok())
    harness.clock.advance(hours=23)
    assert (await harness.post_signed("/hook/plain", b"{}", X_Delivery="d1")).body["deduplicated"]
    harness.clock.advance(hours=2)
    assert not (await harness.post_signed("/hook/plain", b"{}", X_Delivery="d1")).body["deduplicated"]


async def test_delivery_ids_are_per_endpoint(harness: ListenerUnderTest) -> None:
    """Dedupe keys contain the endpoint."""
    first = await harness.post_signed("/hook/plain", b"{}", X_Delivery="d1")
    second = await harness.post_signed("/hook/github", b"{}", X_GitHub_Delivery="d1")
    assert first.body["job_id"] != second.body["job_id"]


async def test_an_endpoint_that_takes_over_a_name_does_not_take_over_deliveries(
    harness: ListenerUnderTest, tmp_path: Path
) -> None:
    """If a reload gives the name to another path, its delivery ids start anew."""
    first = await harness.post_signed("/hook/plain", b"{}", X_Delivery="d1")
    endpoints = "  - {path: /other, name: plain, plugin: p, secret: another, delivery_header: X-Delivery}\n"
    harness.snapshot = a_snapshot(tmp_path / "other", endpoints)
    reply = await harness.post_signed("/other", b"{}", secret="another", X_Delivery="d1")
    assert (reply.status, reply.body["deduplicated"]) == (202, False)
    assert reply.body["job_id"] != first.body["job_id"]


async def test_deliveries_without_an_id_are_not_deduplicated(harness: ListenerUnderTest) -> None:
    first, second = [(await harness.post_signed("/hook/plain", b"{}")).body["job_id"] for _ in range(2)]
    assert first != second


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("/hook/github", GITHUB),
        ("/hook/gitlab", STANDARD),
        ("/hook/stripe", STRIPE),
        ("/hook/slack", SLACK),
        ("/hook/standard", STANDARD),
    ],
)
async def test_presets_verify_their_sender(
    harness: ListenerUnderTest, path: str, scheme: SignatureScheme
) -> None:
    """A preset defines header, format, delivery id and replay window."""
    body = b'{"id": "evt_1", "event_id": "evt_1"}'

    async def send(*, seconds_late: float = 0, secret: str = SECRET) -> Reply:
        headers = signed_headers(scheme, secret, message_id="evt_1", body=body, now=harness.clock.now)
        harness.clock.advance(seconds=seconds_late)
        reply = await harness.post(path, body, **headers)
        harness.clock.advance(seconds=-seconds_late)
        return reply

    first = await send()
    assert first.status == 202
    redelivery = await send(seconds_late=299)
    assert (redelivery.body["job_id"], redelivery.body["deduplicated"]) == (first.body["job_id"], True)
    assert (await send(secret="wrong")).status == 403
    assert (await send(seconds_late=301)).status == (202 if scheme is GITHUB else 403)
    assert (await harness.post_signed(path, b"{}")).status == (202 if scheme is GITHUB else 403)


@pytest.mark.parametrize(
    ("path", "scheme", "body"),
    [
        ("/hook/github", GITHUB, b"{}"),
        ("/hook/stripe", STRIPE, b'{"type": "no id"}'),
        ("/hook/slack", SLACK, b"command=/deploy&trigger_id=13345224609"),
    ],
)
async def test_a_recorded_request_without_an_id_is_not_run_again(
    harness: ListenerUnderTest, path: str, scheme: SignatureScheme, body: bytes
) -> None:
    """Presets of senders that identify every delivery use the signed content if the id is missing."""
    headers = signed_headers(scheme, SECRET, message_id="", body=body, now=harness.clock.now)
    first, second = await harness.post(path, body, **headers), await harness.post(path, body, **headers)
    assert (first.status, first.body["deduplicated"]) == (202, False)
    assert (second.body["job_id"], second.body["deduplicated"]) == (first.body["job_id"], True)


async def test_the_challenge_of_slack_is_answered(harness: ListenerUnderTest) -> None:
    """Slack verifies the URL before it sends events; no job is created."""
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    headers = signed_headers(SLACK, SECRET, message_id="-", body=body, now=START)
    reply = await harness.post("/hook/slack", body, **headers)
    assert (reply.status, reply.body["challenge"]) == (200, "3eZbrw1aB")
    assert (await harness.post("/hook/slack", body)).status == 403
    assert await harness.count() == 0


async def test_name_command_and_header_are_configurable(harness: ListenerUnderTest) -> None:
    assert (await harness.post_signed("/hook/custom", b"{}")).status == 403
    reply = await harness.post("/hook/custom", b"{}", **{"X-Sig": sign_body(SECRET, b"{}")})
    job = await harness.store.get_job(reply.body["job_id"])
    assert job is not None
    assert (job.command, job.submitted_detail) == ("poll", "named")
    assert (await harness.event(job.id)).type == "webhook.named"


async def test_an_endpoint_starts_a_pipeline(harness: ListenerUnderTest) -> None:
    """The response does not wait for the run in any mode; a redelivery is the same run."""
    reply = await harness.post_signed("/hook/line", b'{"action": "opened"}', X_GitHub_Delivery="d1")
    assert reply.status == 202
    run = await harness.store.get_job(reply.body["job_id"])
    assert run is not None
    assert (run.plugin, run.command, run.submitted_by, run.dedupe_key) == (
        "pipeline", "line", "webhook", "delivery:/hook/line:d1",
    )  # fmt: skip
    event = await harness.event(run.id)
    assert (event.type, event.payload) == ("webhook.line", {"action": "opened"})
    redelivery = await harness.post_signed("/hook/line", b'{"action": "opened"}', X_GitHub_Delivery="d1")
    assert (redelivery.body["job_id"], redelivery.body["deduplicated"]) == (run.id, True)


async def test_a_pipeline_whose_condition_fails_is_answered_202(harness: ListenerUnderTest) -> None:
    """A refusal would make senders retry, or disable the webhook."""
    reply = await harness.post_signed("/hook/line", b'{"action": "closed"}')
    assert (reply.status, reply.body["job_id"]) == (202, None)
    assert "does not start" in reply.body["message"]
    assert await harness.count() == 0


async def test_an_endpoint_publishes_an_event(harness: ListenerUnderTest) -> None:
    """All routes and pipelines of the type start; a redelivery starts none of them again."""
    reply = await harness.post_signed("/hook/event", b'{"n": 1}', X_GitHub_Delivery="d1")
    assert reply.status == 202
    assert [entry["target"] for entry in reply.body["started"]] == ["pipeline:first", "pipeline:second"]
    assert reply.body["job_id"] == reply.body["started"][0]["job_id"]
    event = await harness.event(reply.body["job_id"])
    assert (event.type, event.source, event.payload) == ("thing.happened", "webhook", {"n": 1})
    redelivery = await harness.post_signed("/hook/event", b'{"n": 1}', X_GitHub_Delivery="d1")
    assert redelivery.body["started"] == []
    assert [entry["job_id"] for entry in redelivery.body["deduplicated"]] == [
        entry["job_id"] for entry in reply.body["started"]
    ]


async def test_a_disabled_plugin_gets_no_jobs(harness: ListenerUnderTest) -> None:
    """Unsigned requests do not learn that the plugin is disabled."""
    plugin = replace(harness.snapshot.plugins["p"], enabled=False)
    harness.snapshot = replace(harness.snapshot, plugins={"p": plugin})
    assert (await harness.post_signed("/hook/plain", b"{}")).status == 422
    assert (await harness.post("/hook/plain", b"{}")).status == 403
    assert await harness.count() == 0


async def test_endpoints_switch_with_the_configuration(harness: ListenerUnderTest, tmp_path: Path) -> None:
    """A reload switches endpoints and secrets without dropping the listener."""
    endpoints = "  - {path: /hook/new, plugin: p, secret: another}\n"
    harness.snapshot = a_snapshot(tmp_path / "other", endpoints)
    assert (await harness.post_signed("/hook/plain", b"{}")).status == 404
    assert (await harness.post_signed("/hook/new", b"{}", secret="another")).status == 202


async def test_health_is_there_without_a_signature(harness: ListenerUnderTest) -> None:
    """The body is that of the API."""
    reply = await harness.post("/healthz", b"", method="GET")
    assert reply.status == 200
    assert {"status", "uptime_seconds", "queue_depth", "plugins_loaded", "version"} <= reply.body.keys()


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "x-forwarded-proto", "Via"])
async def test_forwarded_requests_do_not_count_as_local(harness: ListenerUnderTest, header: str) -> None:
    """Remote peers get only `status`, and behind a proxy every peer address is local."""
    reply = await harness.request("GET", "/healthz", b"", {header: "203.0.113.7"})
    assert (reply.status, reply.body["status"]) == (200, "ok")
    assert not {"queue_depth", "version", "uptime_seconds"} & reply.body.keys()


async def begin_request(
    harness: ListenerUnderTest, body: bytes, sent_bytes: int, path: str = "/hook/plain"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a signed request with only the first bytes of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: h\r\n{HEADER}: {sign_body(SECRET, body)}\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    async with asyncio.timeout(60):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # the listener reads the body from here on
    writer.write(body[:sent_bytes])
    return reader, writer


async def read_head(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        return await reader.readuntil(b"\r\n\r\n")


async def test_unverified_bodies_share_a_memory_budget(tmp_path: Path) -> None:
    """A body that does not fit is answered 503; a finished body frees its memory."""
    body = b'"' + b"x" * 900 + b'"'
    async with running_listener(tmp_path, unverified_bytes=1500) as harness:
        small_request, large_request = (
            await begin_request(harness, b"{}", 0),
            await begin_request(harness, body, 800),
        )
        refused = await harness.post_signed("/hook/plain", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        for (reader, writer), body_rest in ((large_request, body[800:]), (small_request, b"{}")):
            writer.write(body_rest)
            assert (await read_head(reader)).startswith(b"HTTP/1.1 202 ")
            writer.close()
        assert (await harness.post_signed("/hook/plain", body)).status == 202
        assert await harness.count() == 3
        assert harness.refusals() == [503]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/hook/plain", b"{}"), ("/hook/line", b'{"action": "closed"}'), ("/hook/event", b"{}")],
)
async def test_a_slow_body_is_refused_once_the_daemon_stops(tmp_path: Path, path: str, body: bytes) -> None:
    """The response is 503, also for an event that starts no job."""
    engine: Any = SimpleNamespace(stopping=False)
    async with running_listener(tmp_path, engine=engine) as harness:
        reader, writer = await begin_request(harness, body, 1, path)
        engine.stopping = True
        writer.write(body[1:])
        assert (await read_head(reader)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        assert await harness.count() == 0


async def test_a_half_sent_body_is_answered_503_at_shutdown(tmp_path: Path) -> None:
    """The response is 503 with Retry-After in the error format; no job is created."""
    async with running_listener(tmp_path) as harness:
        reader, writer = await begin_request(harness, b"{}", 1)
        await harness.listener.stop(0)
        head = await read_head(reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in head
        assert b"connection: close\r\n" in head
        assert (await reader.read()).startswith(b'{"error":{"code":"too_busy"')
        writer.close()
        assert await harness.count() == 0
        assert harness.refusals() == [503]


async def test_a_commit_in_progress_at_shutdown_is_answered_as_uncertain(tmp_path: Path) -> None:
    """A job is stored although the daemon stops during a slow commit; the response says that it may exist."""
    async with running_listener(tmp_path) as harness:
        disk, stuck = threading.Event(), threading.Event()
        assert isinstance(harness.store, SqliteStore)

        def block_writer(_session: Session) -> None:
            stuck.set()
            disk.wait(60)

        commit = harness.store.run_write(Priority.SETTLE, block_writer)
        await asyncio.to_thread(stuck.wait, 60)
        asking = asyncio.create_task(harness.post_signed("/hook/plain", b"{}"))
        async with asyncio.timeout(60):
            while not harness.store.writer.waiting(Priority.ENQUEUE):  # noqa: ASYNC110 - there is no signal for it
                await asyncio.sleep(0)
        await harness.listener.stop(0)
        disk.set()
        reply = await asking
        await commit
        # The submission may be in a later batch than the commit that hung. This write comes after both.
        await harness.store.run_write(Priority.MAINTENANCE, lambda _session: None)
        assert reply.status == 503
        assert "may be on the queue" in reply.body["message"]
        assert await harness.count() == 1


async def test_refusals_are_logged_without_request_data(harness: ListenerUnderTest) -> None:
    await harness.post("/hook/plain", b"canary", Authorization="canary", **{HEADER: "canary"})
    await harness.post_signed("/hook/plain?token=canary", b"{}")
    assert harness.refusals() == [403]
    assert "canary" not in repr(harness.emitted).replace(SECRET, "")
    assert SECRET not in repr(harness.emitted)
