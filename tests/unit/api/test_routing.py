"""The router finds the endpoint of a path."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.api.endpoints import ENDPOINTS
from ductile.api.router import Router
from ductile.errors import MethodNotAllowedError, NotFoundError

ROUTER = Router(ENDPOINTS)


@pytest.mark.parametrize(
    "endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.http.method} {endpoint.http.path}"
)
def test_every_endpoint_is_found_by_its_own_path(endpoint: object) -> None:
    """No endpoint hides another."""
    path = endpoint.http.path.replace("{", "x").replace("}", "x")  # type: ignore[attr-defined]  # an endpoint of ours
    match = ROUTER.find(endpoint.http.method, path.encode())  # type: ignore[attr-defined]  # likewise
    assert match.endpoint is endpoint


def test_parameters_are_decoded_each_by_itself() -> None:
    """A slash in a name is part of the name."""
    match = ROUTER.find("GET", b"/job/a%20b/artifact/c%2Fd%C3%A9")
    assert match.values == {"job_id": "a b", "name": "c/dé"}


def test_a_slash_at_the_end_does_not_matter() -> None:
    assert ROUTER.find("GET", b"/jobs/").endpoint.http.path == "/jobs"


def test_head_is_get() -> None:
    assert ROUTER.find("HEAD", b"/jobs").endpoint.http.method == "GET"


@pytest.mark.parametrize("path", sorted({endpoint.http.path for endpoint in ENDPOINTS}))
def test_a_path_takes_what_it_says_that_it_takes(path: str) -> None:
    """`Allow` lists every method and no other; HEAD is allowed where GET is, except for streams."""
    request_path = path.replace("{", "x").replace("}", "x").encode()
    with pytest.raises(MethodNotAllowedError) as excinfo:
        ROUTER.find("BREW", request_path)
    allowed = str(excinfo.value.details["allow"]).split(", ")
    for method in allowed:
        assert ROUTER.find(method, request_path).endpoint.http.method in (method, "GET")
    for method in {"GET", "HEAD", "POST"}.difference(allowed):
        with pytest.raises(MethodNotAllowedError) as other_excinfo:
            ROUTER.find(method, request_path)
        assert other_excinfo.value.details == excinfo.value.details
    get_endpoints = [
        endpoint
        for endpoint in ENDPOINTS
        if endpoint.http.method == "GET" and _matches(endpoint.http.path, request_path.decode())
    ]
    assert ("GET" in allowed) is bool(get_endpoints)
    assert ("HEAD" in allowed) is any(not endpoint.http.streams for endpoint in get_endpoints)


def _matches(template: str, path: str) -> bool:
    """Return whether the path matches the template. `/jobs/retry` is an operation for POST and a job id
    for GET.
    """
    template_parts, path_parts = template.split("/"), path.split("/")
    return len(template_parts) == len(path_parts) and all(
        template_part.startswith("{") or template_part == path_part
        for template_part, path_part in zip(template_parts, path_parts, strict=True)
    )


@given(st.sampled_from(["GET", "POST", "PUT", "BREW"]), st.binary(max_size=60))
def test_any_path_is_found_or_refused(method: str, path: bytes) -> None:
    """The response is 404 or 405 for every unknown path."""
    with suppress(NotFoundError, MethodNotAllowedError):
        ROUTER.find(method, b"/" + path)


def test_unknown_paths_do_not_fill_memory() -> None:
    """A path is looked up before the access token is checked, and may have 64 KiB."""
    router = Router(ENDPOINTS)
    tracemalloc.start()
    try:
        for number in range(600):
            router.find("GET", b"/job/" + str(number).encode().zfill(20_000))
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes < 2**20
