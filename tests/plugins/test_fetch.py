"""fetch against a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from builders.services import Reply, ServiceRequest, a_service
from builders.shipped import ask

JSON = {"Content-Type": "application/json; charset=utf-8"}


def always_reply(reply: Reply) -> Callable[[ServiceRequest], Reply]:
    return lambda _: reply


def versioned_page(request: ServiceRequest) -> Reply:
    """Reply as a server with validators does."""
    if request.headers.get("if-none-match") == '"v1"':
        return Reply(status=304)
    return Reply(body=b"one", headers={"ETag": '"v1"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"})


def test_poll_tells_of_a_change_once_and_asks_conditionally() -> None:
    """The validator is kept in the state; a page that is not modified emits no event."""
    with a_service(versioned_page) as service:
        first = ask("fetch", "poll", config={"url": service.url})
        second = ask("fetch", "poll", config={"url": service.url}, state=first.state)
    assert first.event_types == ["fetch.changed"]
    assert first.events[0]["payload"]["body"] == "one"
    assert (second.answer["result"], second.events) == ("not modified", [])
    assert service.requests[1].headers["if-modified-since"] == "Mon, 01 Jan 2024 00:00:00 GMT"


def test_poll_compares_the_content_where_the_server_has_no_validator() -> None:
    replies = iter([b"a", b"a", b"b", b"a"])
    state: dict[str, object] = {}
    bodies = []
    with a_service(lambda _: Reply(body=next(replies))) as service:
        for _ in range(4):
            response = ask("fetch", "poll", config={"url": service.url}, state=state)
            state |= response.state
            bodies.append([event["payload"]["body"] for event in response.events])
    assert bodies == [["a"], [], ["b"], ["a"]]


def test_state_of_one_address_is_not_used_for_another() -> None:
    with a_service(versioned_page) as service:
        first = ask("fetch", "poll", config={"url": service.url})
        ask("fetch", "poll", config={"url": service.url + "/other"}, state=first.state)
    assert "if-none-match" not in service.requests[1].headers


def test_handle_sends_what_the_payload_says() -> None:
    """The request has the method, headers and JSON of the payload; the result has the JSON of the reply."""
    with a_service(
        always_reply(Reply(status=201, body=b'{"big": 9007199254740993}', headers=JSON))
    ) as service:
        payload = {"url": service.url + "/a?b=c", "method": "put", "headers": {"X-A": "1"}, "json": {"n": 1}}
        response = ask("fetch", "handle", payload=payload)
    assert response.answer["result"]["status"] == 201
    assert response.answer["result"]["json"] == {"big": 2**53 + 1}
    assert response.event_types == ["fetch.done"]
    (request,) = service.requests
    assert (request.method, request.path, json.loads(request.body)) == ("PUT", "/a?b=c", {"n": 1})
    assert request.headers["x-a"] == "1"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(body=b"{", headers=JSON), {"body": "{"}),
        (Reply(body=b"NaN", headers=JSON), {"body": "NaN"}),
        (
            Reply(body="é".encode("latin-1"), headers={"Content-Type": "text/plain; charset=latin-1"}),
            {"body": "é"},
        ),
        (Reply(body=b"\xff\xfe\x00"), {"body_base64": "//4A"}),
    ],
)
def test_content_of_every_kind_becomes_json(reply: Reply, expected: dict[str, str]) -> None:
    """A response is valid UTF-8 JSON, whatever a server sends."""
    with a_service(always_reply(reply)) as service:
        result = ask("fetch", "handle", payload={"url": service.url}).answer["result"]
    assert expected.items() <= result.items()


@pytest.mark.parametrize(
    ("status", "retry"), [(400, False), (404, False), (408, True), (429, True), (500, True), (503, True)]
)
def test_a_refusal_is_tried_again_only_if_that_may_help(status: int, retry: bool) -> None:
    """Most refusals with 4xx are permanent."""
    with a_service(always_reply(Reply(status=status, body=b"because"))) as service:
        response = ask("fetch", "handle", payload={"url": service.url})
    assert response.answer["retry"] is retry
    assert f"answers {status}: because" in response.answer["error"]


def test_other_statuses_can_be_expected() -> None:
    with a_service(always_reply(Reply(status=404))) as service:
        assert ask("fetch", "handle", config={"expect": [404]}, payload={"url": service.url}).kind == "ok"


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/", "http:///x", "http://[", "javascript:1", "http://a:b@c/"]
)
def test_other_schemes_and_odd_addresses_are_refused(url: str) -> None:
    """Only http and https are accepted."""
    assert ask("fetch", "handle", payload={"url": url}).failed_for_good("address")


def test_an_answer_may_not_be_larger_than_allowed() -> None:
    with a_service(always_reply(Reply(body=b"x" * 11))) as service:
        response = ask("fetch", "handle", config={"max_bytes": 10}, payload={"url": service.url})
        allowed = ask("fetch", "handle", config={"max_bytes": 11}, payload={"url": service.url})
    assert response.failed_for_good("more than 10 bytes")
    assert allowed.kind == "ok"


def test_a_server_that_is_not_there_may_come_back() -> None:
    with a_service(always_reply(Reply())) as service:
        pass
    assert ask("fetch", "handle", payload={"url": service.url}).may_be_tried_again("failed")


def test_only_allowed_hosts_are_contacted_also_after_a_redirect() -> None:
    """Neither a payload nor a redirect leads a request into the local network."""
    config = {"allow_hosts": ["localhost"]}
    with a_service(always_reply(Reply(status=302, headers={"Location": "http://127.0.0.1:1/"}))) as service:
        direct = ask("fetch", "handle", config=config, payload={"url": service.url})
        local_url = service.url.replace("127.0.0.1", "localhost")
        redirected = ask("fetch", "handle", config=config, payload={"url": local_url})
    assert direct.failed_for_good("allow_hosts")
    assert redirected.failed_for_good("allow_hosts")
    assert len(service.requests) == 1


def test_configured_headers_go_to_the_configured_host_only() -> None:
    """Neither a payload nor a redirect can have a token sent to another host."""
    with a_service(always_reply(Reply())) as other_service:

        def redirect(request: ServiceRequest) -> Reply:
            headers = {"Location": other_service.url + "/after"}
            return Reply(status=302, headers=headers) if request.path == "/away" else Reply()

        with a_service(redirect) as service:
            config = {"url": service.url, "headers": {"Authorization": "Bearer canary"}}
            ask("fetch", "handle", config=config)
            ask("fetch", "handle", config=config, payload={"url": other_service.url + "/direct"})
            payload = {"url": service.url + "/away", "headers": {"X-Mine": "canary"}}
            assert ask("fetch", "handle", config=config, payload=payload).kind == "ok"
    assert service.requests[0].headers["authorization"] == "Bearer canary"
    assert [request.path for request in other_service.requests] == ["/direct", "/after"]
    assert not any("canary" in str(request.headers) for request in other_service.requests)


def test_redirects_end() -> None:
    with a_service(always_reply(Reply(status=301, headers={"Location": "/again"}))) as service:
        response = ask("fetch", "handle", config={"max_redirects": 2}, payload={"url": service.url})
    assert response.failed_for_good("more than 2 redirects")
    assert len(service.requests) == 3


def test_a_redirect_of_something_that_is_sent_is_not_followed() -> None:
    """A request that changes data is not redirected."""
    with a_service(always_reply(Reply(status=307, headers={"Location": "/again"}))) as service:
        response = ask("fetch", "handle", payload={"url": service.url, "body": "x"})
    assert response.failed_for_good("answers 307")
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("config", "payload", "message"),
    [
        ({}, {}, "`url` is missing"),
        ({"timeout": "soon"}, {}, "config cannot be used"),
        ({"headers": ["a"]}, {}, "`headers`"),
        ({"url": "http://localhost:1"}, {"headers": {"A": "b\r\nC: d"}}, "cannot be sent"),
        ({"url": "http://localhost:1"}, {"method": "GET /x HTTP/1.1\r\n"}, "not an HTTP method"),
    ],
)
def test_mistakes_are_reported_and_not_retried(
    config: dict[str, object], payload: dict[str, object], message: str
) -> None:
    assert ask("fetch", "handle", config=config, payload=payload).failed_for_good(message)
