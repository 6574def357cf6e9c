"""The response to a wrong request has one shape, whatever is wrong, and names the mistake."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from urllib.parse import unquote

import pytest

from builders.http import CANARY, Api, an_api, an_api_workspace, token_for


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("api"), api="  max_body_size: 64KB\n")) as api:
        yield api


def test_a_path_that_is_not_there(api: Api) -> None:
    """The response is 404 with or without a token: there is nothing to protect."""
    for path in ("/nope", "/plugin", "/job/x/y/z", "/plugin//poll", "/%2e%2e/etc/passwd"):
        response = api.ask("GET", path, token=None)
        assert (response.status, response.code) == (404, "not_found"), path


def test_a_method_that_is_not_for_the_path(api: Api) -> None:
    """The response is 405 and names the methods of the path."""
    response = api.ask("DELETE", "/jobs")
    assert (response.status, response.code, response.headers["allow"]) == (
        405,
        "method_not_allowed",
        "GET, HEAD",
    )
    assert api.ask("PUT", "/plugin/echo/poll").headers["allow"] == "POST"
    assert api.ask("HEAD", "/events").status == 405


def test_head_is_get_without_its_body(api: Api) -> None:
    response = api.ask("HEAD", "/jobs")
    assert (response.status, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"payload": {"a": 1,}}', "line 1, column 21"),
        (b'{"payload":\n {"a": tru}}', "line 2, column 1"),
        (b'{"payload": {"a": 1}', "it ends too early"),
        (b'{"payload": {"a": NaN}}', "column 19"),
        (b'{"payload":\n {"a": 1e400}}', "a number out of range at line 2, column 8"),
        (b'{"payload": {"1e999": "-1e999", "b": -1e999}}', "a number out of range at line 1, column 38"),
        (b'{"payload": {"a": ' + b"9" * 5000 + b"}}", "a number out of range at line 1, column 19"),
        (b'{"payload": {"a": "\\ud800"}}', "a lone surrogate at line 1, column 20"),
        (b'{"payload": {"a": "\\ud83d\\ude00\\\\ud800\\ud800 x"}}', "column 39"),
        (b'{"payload": {"a": "\\udc00"}}', "a lone surrogate at line 1, column 20"),
        (b'{"payload": {"a": "\\ud8', "it ends too early"),
        (b'{"payload": {"a": "\xff"}}', "not UTF-8"),
        (b'"text"', "has to be a JSON object"),
        (b"[1, 2]", "has to be a JSON object"),
        (b"null", "has to be a JSON object"),
        (b"\x00\x01\x02", "not JSON"),
        (b'{"payload": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nests too deep"),
    ],
)
def test_a_body_that_is_no_json_object(api: Api, body: bytes, message: str) -> None:
    """The response is 400 and says where the mistake is."""
    response = api.ask("POST", "/plugin/echo/poll", body)
    assert (response.status, response.code) == (400, "usage")
    assert message in response.body["message"]


def test_a_body_that_is_compressed(api: Api) -> None:
    """The hint says that bodies are sent without compression."""
    compressed = gzip.compress(b'{"payload": {}}')
    for headers in ({"Content-Encoding": "gzip"}, {}):
        response = api.ask("POST", "/plugin/echo/poll", compressed, headers=headers)
        assert (response.status, response.code) == (400, "usage")
        assert "compressed" in response.body["error"]["hint"]
    compressed = zlib.compress(b'{"payload": {}}')
    response = api.ask("POST", "/plugin/echo/poll", compressed, headers={"Content-Encoding": "deflate"})
    assert "compressed" in response.body["error"]["hint"]


@pytest.mark.parametrize("path", ["/jobs", "/job-logs"])
@pytest.mark.parametrize(
    "instant",
    [
        "0001-01-01T00:00:00%2B23:00",
        "9999-12-31T23:59:59-23:00",
        "2026-11-17T00:00:00X",
        "2026-11-31",
        "20261117",
        "2026-W47-2",
        "soon",
        "",
    ],
)
def test_an_invalid_instant_is_refused(api: Api, path: str, instant: str) -> None:
    """The response is 400 and names the parameter, also at the edge of the calendar."""
    for name in ("from", "to"):
        response = api.ask("GET", f"{path}?{name}={instant}")
        assert (response.status, response.code) == (400, "usage"), response
        assert response.body["message"] == f"{name}: {unquote(instant)!r} is not a time"


def test_a_plus_that_became_a_blank(api: Api) -> None:
    """In a URL a + means a blank; the hint shows how a + is written."""
    response = api.ask("GET", "/jobs?from=2026-11-17T00:00:00+02:00")
    assert (response.status, response.code) == (400, "usage")
    assert "2026-11-17T00:00:00%2B02:00" in response.body["error"]["hint"]


def test_a_date_alone_is_its_beginning(api: Api) -> None:
    """A date, and a time without an offset, are in the zone of the service, which is UTC here."""
    job_id = api.post("/plugin/echo/poll")["job_id"]
    day = api.ended(job_id)["created_at"][:10]
    listed_jobs = api.get(f"/jobs?from={day}&limit=200")["jobs"]
    assert job_id in {job["job_id"] for job in listed_jobs}
    assert all(job["created_at"] >= f"{day}T00:00:00" for job in listed_jobs)
    assert api.get(f"/jobs?to={day}&from={day}")["jobs"] == []
    for path, key in (("/jobs", "jobs"), ("/job-logs", "logs")):
        without_zone, in_utc = (
            api.get(f"{path}?from={day}T00:00:00{zone}&limit=200")[key] for zone in ("", "Z")
        )
        assert [row["job_id"] for row in without_zone] == [row["job_id"] for row in in_utc]
        assert api.get(f"{path}?to={day}T00:00:00")[key] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"payload": [1]}, "payload has to be a JSON object"),
        ({"payload": "text"}, "payload has to be a JSON object"),
        ({"dedupe_key": 7}, "dedupe_key has to be text"),
        ({"dedupe_ttl": "soon"}, "dedupe_ttl"),
        ({"dedupe_ttl": True}, "dedupe_ttl has to be a duration, or a number of seconds"),
        ({"dedupe_ttl": []}, "dedupe_ttl has to be a duration, or a number of seconds"),
        ({"dedupe_ttl": -1}, "dedupe_ttl cannot be negative"),
        ({"dedupe_ttl": -1e300}, "dedupe_ttl cannot be negative"),
        ({"dedupe_ttl": "30d"}, "longer than jobs are remembered"),
        ({"dedupe_ttl": 1e300}, "longer than jobs are remembered"),
        ({"paylod": {}}, "there is no field paylod"),
        ({"text": "hello"}, "there is no field text"),
        ({"state_webhook_url": 7}, "state_webhook_url has to be text"),
        ({"state_webhook_url": "ftp://example.org/"}, "state_webhook_url"),
        ({"state_webhook_url": "http://127.0.0.1:1/"}, "state_webhook_url"),
        ({"state_webhook_url": "http://[::ffff:10.0.0.1]/"}, "state_webhook_url"),
    ],
)
def test_a_body_that_says_something_else(api: Api, body: dict[str, object], message: str) -> None:
    """An invalid body is answered 422 with the field, and submits no job."""
    before = len(api.get("/jobs")["jobs"])
    response = api.ask("POST", "/plugin/echo/poll", body)
    assert (response.status, response.code) == (422, "refused"), response
    assert message in response.body["message"]
    assert [response.body["error"]["details"]["field"]] == list(body)
    assert len(api.get("/jobs")["jobs"]) == before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "type is missing"),
        ({"type": 5}, "type has to be text"),
        ({"type": "a.b", "payload": "text"}, "payload has to be a JSON object"),
    ],
)
def test_an_invalid_event_is_refused(api: Api, body: object, message: str) -> None:
    """The response is 422 with the field, as for a job."""
    response = api.ask("POST", "/event", body)
    assert (response.status, response.code) == (422, "refused"), response
    assert message in response.body["message"]
    assert response.body["error"]["details"]["field"] in ("type", "payload")


def test_a_hint_at_what_was_meant(api: Api) -> None:
    """The hint of an error names the nearest right name."""
    assert (
        api.ask("POST", "/plugin/echo/poll", {"paylod": {}}).body["error"]["hint"] == "did you mean payload?"
    )
    assert "goes into payload" in api.ask("POST", "/plugin/echo/poll", {"q": 1}).body["error"]["hint"]
    assert api.ask("POST", "/plugin/ecko/poll").body["error"]["hint"] == "did you mean echo?"
    hint = api.ask("POST", "/plugin/echo/pull").body["error"]["hint"]
    assert hint == "did you mean poll? It has poll, handle, health."


def test_content_type_does_not_matter(api: Api) -> None:
    """A body is read as JSON, whatever its content type."""
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"):
        api.post("/plugin/echo/poll", {"payload": {}}, headers={"Content-Type": content_type})
    assert api.post("/plugin/echo/poll", b"")["status"] == "queued"


def test_numbers_survive(api: Api) -> None:
    """Integers beyond 2^53 are exact, on the way in and out."""
    big = 2**60 + 1
    job_id = api.post("/plugin/echo/poll", {"payload": {"n": big}})["job_id"]
    assert api.get(f"/job/{job_id}")["payload"] == {"n": big}


def test_bodies_are_limited(api: Api) -> None:
    """A larger body is answered 413, by its declared and by its real length."""
    padding = "x" * (64_000 - len('{"payload": {"a": ""}}'))
    assert api.ask("POST", "/plugin/echo/poll", {"payload": {"a": padding}}).status == 202
    response = api.ask("POST", "/plugin/echo/poll", {"payload": {"a": padding + "x"}})
    assert (response.status, response.code) == (413, "too_large")
    chunked = b"".join(b"8000\r\n" + b" " * 0x8000 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
    head = (
        f"POST /plugin/echo/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_for('*')}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    assert api.send_raw(head.encode() + chunked).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(("scope", "status", "level"), [("jobs:ro", 200, "debug"), ("echo:ro", 403, "info")])
def test_a_frequent_request_is_logged_where_it_was_refused(
    api: Api, scope: str, status: int, level: str
) -> None:
    """The line has the name of the token; a successful request is logged at debug level."""
    assert api.ask("GET", "/metrics", token=token_for(scope)).status == status
    expected = ("/metrics", scope)
    line = api.daemon.wait_for("api.request", lambda line: (line["path"], line["token"]) == expected)
    assert (line["status"], line["level"]) == (status, level)


def test_no_secret_in_any_answer_or_line(api: Api) -> None:
    """Tokens, right or wrong, are in no response and in no line of the log."""
    wrong_token = f"{CANARY}-wrong"
    assert wrong_token.encode() not in api.ask("GET", "/jobs", token=wrong_token).content
    assert CANARY.encode() not in api.ask("GET", f"/jobs?token={wrong_token}").content
    api.ask("GET", "/config/view")
    api.ask("GET", "/job/the-last-of-them")
    api.daemon.wait_for("api.request", lambda line: line["path"] == "/job/the-last-of-them")
    assert CANARY not in str(api.daemon.lines)
    unauthorized = api.daemon.wait_for("api.unauthorized")
    assert unauthorized["peer"] == "127.0.0.1"
    request = api.daemon.wait_for("api.request", lambda line: line["path"] == "/config/view")
    assert (request["token"], request["status"], request["method"]) == ("*", 200, "GET")
