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
class Bench:
    store: Store
    clock: Clock
    port: int
    snapshot: Snapshot
    listener: Listener = field(init=False)
    happened: list[SignalEvent] = field(default_factory=list)

    async def post(self, path: str, body: bytes, *, method: str = "POST", **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask(method, path, body, {"Content-Length": str(len(body)), **named})

    async def signed(self, path: str, body: bytes, secret: str = SECRET, **headers: str) -> Reply:
        return await self.post(path, body, **{HEADER: sign_body(secret, body)}, **headers)

    async def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return await self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    async def raw(self, data: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                first, *rest = head.decode("latin-1").split("\r\n")
                named = dict(line.lower().split(": ", 1) for line in rest if line)
                content = await reader.readexactly(int(named["content-length"]))
        finally:
            writer.close()
        return Reply(int(first.split()[1]), named, content)

    async def event(self, job_id: str) -> Any:
        job = await self.store.get_job(job_id)
        assert job is not None
        assert job.source_event_id is not None
        return await self.store.get_event(job.source_event_id)

    async def count(self) -> int:
        return (await self.store.queue_counts()).depth

    def refusals(self) -> list[Any]:
        return [each.data["status"] for each in self.happened if each.signal is Signal.WEBHOOK_REFUSED]


def a_snapshot(directory: Path, endpoints: str = ENDPOINTS) -> Snapshot:
    tokens = f"tokens: [{{name: shared, key: {SECRET}}}]\n"
    text = f"{tokens}{PIPELINES}plugins: {{p: {{}}}}\nwebhooks:\n  endpoints:\n{endpoints}"
    return compile_snapshot(loaded(a_config(directory, text)), a_discovery(directory, a_manifest("p")))


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    snapshot: Snapshot | None = None,
    body_seconds: float = 10.0,
    unverified_bytes: int = UNVERIFIED_BYTES,
    engine: Engine | None = None,
) -> AsyncIterator[Bench]:
    clock = Clock()
    store = open_sqlite(directory / "state.db", clock=clock, rng=Random(1))
    bench = Bench(store, clock, 0, snapshot or a_snapshot(directory))
    signals = SignalBus()
    signals.subscribe(bench.happened.append)
    context = OperationContext(
        store=store, snapshot=lambda: bench.snapshot, now=clock, rng=Random(2), engine=engine
    )
    application = WebhookApplication(
        context, signals, body_seconds=body_seconds, unverified_bytes=unverified_bytes
    )
    listener = bench.listener = Listener("webhooks", "127.0.0.1:0", application, ListenerLimits())
    (address,) = await listener.start()
    bench.port = int(address.rpartition(":")[2])
    try:
        yield bench
    finally:
        await listener.stop(1)
        await store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serving(tmp_path) as made:
        yield made


async def test_a_signed_request_is_a_job_on_disk(bench: Bench) -> None:
    """202 with the job's id; the event is `webhook.<name>` and carries the object."""
    reply = await bench.signed("/hook/plain", b'{"n": 36893488147419103233}')
    assert reply.status == 202
    job = await bench.store.get_job(reply.body["job_id"])
    assert job is not None
    assert (job.plugin, job.command, job.submitted_by, job.submitted_detail) == (
        "p", "handle", "webhook", "plain",
    )  # fmt: skip
    event = await bench.event(job.id)
    assert (event.type, event.source, event.payload) == ("webhook.plain", "webhook", {"n": 2**65 + 1})


@pytest.mark.parametrize("form", ["sha256={}", "{}", "SHA"])
async def test_both_forms_of_the_signature_are_accepted(bench: Bench, form: str) -> None:
    """`sha256=<hex>` or bare hex."""
    digits = sign_body(SECRET, b"{}").removeprefix("sha256=")
    written = digits.upper() if form == "SHA" else form.format(digits)
    assert (await bench.post("/hook/plain", b"{}", **{HEADER: written})).status == 202


async def test_unsigned_requests_learn_nothing(bench: Bench) -> None:
    """403 without details, whatever was wrong; no job."""
    good = sign_body(SECRET, b"{}")
    replies = [
        await bench.post("/hook/plain", b"{}"),
        await bench.post("/hook/plain", b"{}", **{HEADER: ""}),
        await bench.post("/hook/plain", b"{}", **{HEADER: "sha256=" + "0" * 64}),
        await bench.post("/hook/plain", b"{} ", **{HEADER: good}),
        await bench.post("/hook/plain", b"{}", **{HEADER: f"{good}, {good}"}),
        await bench.post("/hook/plain", b"{}", **{"X-Hub-Signature": good}),
        await bench.signed("/hook/plain", b"{}", secret="wrong"),
        await bench.post("/hook/plain", b"{}", **{HEADER: good[:-1]}),
    ]
    assert {reply.status for reply in replies} == {403}
    assert len({reply.raw for reply in replies}) == 1
    assert replies[0].body["message"] == "denied"
    assert await bench.count() == 0
    reasons = [each.data["reason"] for each in bench.happened if each.signal is Signal.WEBHOOK_REFUSED]
    assert [str(reason).partition(":")[0] for reason in reasons] == [
        "there is no header x-hub-signature-256",
        *["the signature does not fit"] * 4,
        "there is no header x-hub-signature-256",
        *["the signature does not fit"] * 2,
    ], "the log says what was wrong"


async def test_paths_and_methods(bench: Bench) -> None:
    """404 path, 405 method."""
    assert (await bench.signed("/hook/plain/", b"{}")).status == 404
    assert (await bench.signed("/", b"{}")).status == 404
    assert (await bench.signed("/hook/plain?x=1", b"{}")).status == 202
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        reply = await bench.post("/hook/plain", b"", method=method)
        assert (reply.status, reply.headers["allow"]) == (405, "post")
    assert (await bench.post("/healthz", b"{}")).status == 405


async def test_a_body_above_the_limit_is_refused(bench: Bench) -> None:
    """413, also for a lying or missing Content-Length."""
    large = b'"' + b"x" * 1000 + b'"'
    assert (await bench.signed("/hook/plain", large)).status == 413
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (large[:600], large[600:]))
    head = {"Transfer-Encoding": "chunked", HEADER: sign_body(SECRET, large)}
    assert (await bench.ask("POST", "/hook/plain", chunks + b"0\r\n\r\n", head)).status == 413
    lying = {"Content-Length": "99999999", HEADER: sign_body(SECRET, b"{}")}
    assert (await bench.ask("POST", "/hook/plain", b"{}", lying)).status == 413
    assert await bench.count() == 0


async def test_a_body_at_the_limit_is_accepted_chunked_or_not(bench: Bench) -> None:
    full = b'"' + b"x" * 998 + b'"'
    assert (await bench.signed("/hook/plain", full)).status == 202
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(full), full)
    head = {"Transfer-Encoding": "chunked", HEADER: sign_body(SECRET, full)}
    assert (await bench.ask("POST", "/hook/plain", chunked, head)).status == 202


async def test_slow_bodies_time_out(tmp_path: Path) -> None:
    async with serving(tmp_path, body_seconds=0.2) as bench:
        reply = await bench.ask("POST", "/hook/plain", b"{", {"Content-Length": "2"})
        assert reply.status == 408


async def test_a_body_shorter_than_declared_is_no_job(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        _, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(b"POST /hook/plain HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{}")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await bench.post("/healthz", b"", method="GET")).status == 200
        assert await bench.count() == 0


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
async def test_any_other_body_is_under_body(bench: Bench, body: bytes, payload: JsonObject | None) -> None:
    """The JSON object, other bodies `{"body": …}`."""
    reply = await bench.signed("/hook/plain", body)
    assert reply.status == 202
    event = await bench.event(reply.body["job_id"])
    assert event.payload == (json.loads(body) if payload is None else payload)


async def test_lone_surrogates_do_no_harm(bench: Bench) -> None:
    reply = await bench.signed("/hook/plain", b'{"a": "\\ud800"}')
    assert reply.status == 202
    assert await bench.event(reply.body["job_id"])


async def test_headers_are_passed_without_credentials(bench: Bench) -> None:
    """Lower-case, without credentials and signature."""
    reply = await bench.signed(
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
    headers = (await bench.event(reply.body["job_id"])).headers
    assert headers["x-github-event"] == "push"
    assert headers["host"] == "localhost"
    assert "canary" not in json.dumps(headers)
    assert HEADER.lower() not in headers


async def test_a_redelivery_is_not_run_twice(bench: Bench) -> None:
    """By `delivery_header`, while it waits and runs and after it succeeded."""
    first = await bench.signed("/hook/plain", b"{}", X_Delivery="d1")
    again = await bench.signed("/hook/plain", b'{"other": 1}', X_Delivery=" d1 ")
    assert (again.status, again.body["job_id"], again.body["deduplicated"]) == (
        202,
        first.body["job_id"],
        True,
    )
    assert (await bench.signed("/hook/plain", b"{}", X_Delivery="d2")).body["job_id"] != first.body["job_id"]
    job = await claim_one(bench.store)
    assert job.dedupe_key == "delivery:/hook/plain:d1"
    await settle(bench.store, job, ok())
    bench.clock.advance(hours=23)
    assert (await bench.signed("/hook/plain", b"{}", X_Delivery="d1")).body["deduplicated"]
    bench.clock.advance(hours=2)
    assert not (await bench.signed("/hook/plain", b"{}", X_Delivery="d1")).body["deduplicated"]


async def test_delivery_ids_are_per_endpoint(bench: Bench) -> None:
    """Keys are namespaced by endpoint."""
    one = await bench.signed("/hook/plain", b"{}", X_Delivery="d1")
    other = await bench.signed("/hook/github", b"{}", X_GitHub_Delivery="d1")
    assert one.body["job_id"] != other.body["job_id"]


async def test_an_endpoint_that_takes_over_a_name_does_not_take_over_deliveries(
    bench: Bench, tmp_path: Path
) -> None:
    """After a reload gives the name to another path, its delivery ids start anew."""
    one = await bench.signed("/hook/plain", b"{}", X_Delivery="d1")
    other = "  - {path: /other, name: plain, plugin: p, secret: another, delivery_header: X-Delivery}\n"
    bench.snapshot = a_snapshot(tmp_path / "other", other)
    reply = await bench.signed("/other", b"{}", secret="another", X_Delivery="d1")
    assert (reply.status, reply.body["deduplicated"]) == (202, False)
    assert reply.body["job_id"] != one.body["job_id"]


async def test_deliveries_without_an_id_are_not_deduplicated(bench: Bench) -> None:
    one, other = [(await bench.signed("/hook/plain", b"{}")).body["job_id"] for _ in range(2)]
    assert one != other


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
async def test_presets_verify_their_sender(bench: Bench, path: str, scheme: SignatureScheme) -> None:
    """Header, format, delivery id and replay window of the preset."""
    body = b'{"id": "evt_1", "event_id": "evt_1"}'

    async def send(*, late: float = 0, secret: str = SECRET) -> Reply:
        headers = signed_headers(scheme, secret, message_id="evt_1", body=body, now=bench.clock.now)
        bench.clock.advance(seconds=late)
        reply = await bench.post(path, body, **headers)
        bench.clock.advance(seconds=-late)
        return reply

    first = await send()
    assert first.status == 202
    again = await send(late=299)
    assert (again.body["job_id"], again.body["deduplicated"]) == (first.body["job_id"], True)
    assert (await send(secret="wrong")).status == 403
    assert (await send(late=301)).status == (202 if scheme is GITHUB else 403)
    assert (await bench.signed(path, b"{}")).status == (202 if scheme is GITHUB else 403)


@pytest.mark.parametrize(
    ("path", "scheme", "body"),
    [
        ("/hook/github", GITHUB, b"{}"),
        ("/hook/stripe", STRIPE, b'{"type": "no id"}'),
        ("/hook/slack", SLACK, b"command=/deploy&trigger_id=13345224609"),
    ],
)
async def test_a_recorded_request_without_an_id_is_not_run_again(
    bench: Bench, path: str, scheme: SignatureScheme, body: bytes
) -> None:
    """Presets whose senders identify every delivery fall back to the signed content."""
    headers = signed_headers(scheme, SECRET, message_id="", body=body, now=bench.clock.now)
    first, second = await bench.post(path, body, **headers), await bench.post(path, body, **headers)
    assert (first.status, first.body["deduplicated"]) == (202, False)
    assert (second.body["job_id"], second.body["deduplicated"]) == (first.body["job_id"], True)


async def test_the_challenge_of_slack_is_answered(bench: Bench) -> None:
    """Slack verifies the URL before it sends events; that is no job."""
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    headers = signed_headers(SLACK, SECRET, message_id="-", body=body, now=START)
    reply = await bench.post("/hook/slack", body, **headers)
    assert (reply.status, reply.body["challenge"]) == (200, "3eZbrw1aB")
    assert (await bench.post("/hook/slack", body)).status == 403
    assert await bench.count() == 0


async def test_name_command_and_header_are_configurable(bench: Bench) -> None:
    assert (await bench.signed("/hook/custom", b"{}")).status == 403
    reply = await bench.post("/hook/custom", b"{}", **{"X-Sig": sign_body(SECRET, b"{}")})
    job = await bench.store.get_job(reply.body["job_id"])
    assert job is not None
    assert (job.command, job.submitted_detail) == ("poll", "named")
    assert (await bench.event(job.id)).type == "webhook.named"


async def test_an_endpoint_starts_a_pipeline(bench: Bench) -> None:
    """Without waiting for it, whatever its mode; a redelivery is the same run."""
    reply = await bench.signed("/hook/line", b'{"action": "opened"}', X_GitHub_Delivery="d1")
    assert reply.status == 202
    run = await bench.store.get_job(reply.body["job_id"])
    assert run is not None
    assert (run.plugin, run.command, run.submitted_by, run.dedupe_key) == (
        "pipeline", "line", "webhook", "delivery:/hook/line:d1",
    )  # fmt: skip
    event = await bench.event(run.id)
    assert (event.type, event.payload) == ("webhook.line", {"action": "opened"})
    again = await bench.signed("/hook/line", b'{"action": "opened"}', X_GitHub_Delivery="d1")
    assert (again.body["job_id"], again.body["deduplicated"]) == (run.id, True)


async def test_a_pipeline_whose_condition_fails_is_answered_202(bench: Bench) -> None:
    """A refusal would make senders retry, or disable the webhook."""
    reply = await bench.signed("/hook/line", b'{"action": "closed"}')
    assert (reply.status, reply.body["job_id"]) == (202, None)
    assert "does not start" in reply.body["message"]
    assert await bench.count() == 0


async def test_an_endpoint_publishes_an_event(bench: Bench) -> None:
    """Everything that listens to the type is started; a redelivery starts none of it again."""
    reply = await bench.signed("/hook/event", b'{"n": 1}', X_GitHub_Delivery="d1")
    assert reply.status == 202
    assert [entry["target"] for entry in reply.body["started"]] == ["pipeline:first", "pipeline:second"]
    assert reply.body["job_id"] == reply.body["started"][0]["job_id"]
    event = await bench.event(reply.body["job_id"])
    assert (event.type, event.source, event.payload) == ("thing.happened", "webhook", {"n": 1})
    again = await bench.signed("/hook/event", b'{"n": 1}', X_GitHub_Delivery="d1")
    assert again.body["started"] == []
    assert [entry["job_id"] for entry in again.body["deduplicated"]] == [
        entry["job_id"] for entry in reply.body["started"]
    ]


async def test_a_disabled_plugin_gets_no_jobs(bench: Bench) -> None:
    """`enabled: false` is enforced for webhooks; unsigned requests do not learn of it."""
    plugin = replace(bench.snapshot.plugins["p"], enabled=False)
    bench.snapshot = replace(bench.snapshot, plugins={"p": plugin})
    assert (await bench.signed("/hook/plain", b"{}")).status == 422
    assert (await bench.post("/hook/plain", b"{}")).status == 403
    assert await bench.count() == 0


async def test_endpoints_switch_with_the_configuration(bench: Bench, tmp_path: Path) -> None:
    """A reload switches endpoints and secrets without dropping the listener."""
    other = "  - {path: /hook/new, plugin: p, secret: another}\n"
    bench.snapshot = a_snapshot(tmp_path / "other", other)
    assert (await bench.signed("/hook/plain", b"{}")).status == 404
    assert (await bench.signed("/hook/new", b"{}", secret="another")).status == 202


async def test_health_is_there_without_a_signature(bench: Bench) -> None:
    """The same body as the API's."""
    reply = await bench.post("/healthz", b"", method="GET")
    assert reply.status == 200
    assert {"status", "uptime_seconds", "queue_depth", "plugins_loaded", "version"} <= reply.body.keys()


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "x-forwarded-proto", "Via"])
async def test_forwarded_requests_do_not_count_as_local(bench: Bench, header: str) -> None:
    """Remote peers get `status` only, and behind a proxy every peer address is local."""
    reply = await bench.ask("GET", "/healthz", b"", {header: "203.0.113.7"})
    assert (reply.status, reply.body["status"]) == (200, "ok")
    assert not {"queue_depth", "version", "uptime_seconds"} & reply.body.keys()


async def begun(
    bench: Bench, body: bytes, sent: int, path: str = "/hook/plain"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a signed request with only the beginning of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: h\r\n{HEADER}: {sign_body(SECRET, body)}\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    async with asyncio.timeout(60):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # from here on the body is being read
    writer.write(body[:sent])
    return reader, writer


async def answered(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        return await reader.readuntil(b"\r\n\r\n")


async def test_unverified_bodies_share_a_memory_budget(tmp_path: Path) -> None:
    """A body that does not fit is answered 503; bodies that are done give their memory back."""
    body = b'"' + b"x" * 900 + b'"'
    async with serving(tmp_path, unverified_bytes=1500) as bench:
        empty, held = await begun(bench, b"{}", 0), await begun(bench, body, 800)
        refused = await bench.signed("/hook/plain", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        for (reader, writer), rest in ((held, body[800:]), (empty, b"{}")):
            writer.write(rest)
            assert (await answered(reader)).startswith(b"HTTP/1.1 202 ")
            writer.close()
        assert (await bench.signed("/hook/plain", body)).status == 202
        assert await bench.count() == 3
        assert bench.refusals() == [503]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/hook/plain", b"{}"), ("/hook/line", b'{"action": "closed"}'), ("/hook/event", b"{}")],
)
async def test_a_slow_body_is_refused_once_the_daemon_stops(tmp_path: Path, path: str, body: bytes) -> None:
    """503, also for an event that would start nothing."""
    engine: Any = SimpleNamespace(stopping=False)
    async with serving(tmp_path, engine=engine) as bench:
        reader, writer = await begun(bench, body, 1, path)
        engine.stopping = True
        writer.write(body[1:])
        assert (await answered(reader)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        assert await bench.count() == 0


async def test_a_half_sent_body_is_answered_503_at_shutdown(tmp_path: Path) -> None:
    """503 with Retry-After in our error format; no job."""
    async with serving(tmp_path) as bench:
        reader, writer = await begun(bench, b"{}", 1)
        await bench.listener.stop(0)
        head = await answered(reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in head
        assert b"connection: close\r\n" in head
        assert (await reader.read()).startswith(b'{"error":{"code":"too_busy"')
        writer.close()
        assert await bench.count() == 0
        assert bench.refusals() == [503]


async def test_a_commit_in_progress_at_shutdown_is_answered_as_uncertain(tmp_path: Path) -> None:
    """The daemon stops during a slow commit: the job exists afterwards, and the response says it may."""
    async with serving(tmp_path) as bench:
        disk, stuck = threading.Event(), threading.Event()
        assert isinstance(bench.store, SqliteStore)

        def hang(_session: Session) -> None:
            stuck.set()
            disk.wait(60)

        commit = bench.store.run_write(Priority.SETTLE, hang)
        await asyncio.to_thread(stuck.wait, 60)
        asking = asyncio.create_task(bench.signed("/hook/plain", b"{}"))
        async with asyncio.timeout(60):
            while not bench.store.writer.waiting(Priority.ENQUEUE):  # noqa: ASYNC110 - there is no signal for it
                await asyncio.sleep(0)
        await bench.listener.stop(0)
        disk.set()
        reply = await asking
        await commit
        # The submission may be in a later batch than the commit that hung; this one comes after both.
        await bench.store.run_write(Priority.MAINTENANCE, lambda _session: None)
        assert reply.status == 503
        assert "may be on the queue" in reply.body["message"]
        assert await bench.count() == 1


async def test_refusals_are_logged_without_request_data(bench: Bench) -> None:
    await bench.post("/hook/plain", b"canary", Authorization="canary", **{HEADER: "canary"})
    await bench.signed("/hook/plain?token=canary", b"{}")
    assert bench.refusals() == [403]
    assert "canary" not in repr(bench.happened).replace(SECRET, "")
    assert SECRET not in repr(bench.happened)
