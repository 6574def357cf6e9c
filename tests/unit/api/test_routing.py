"""Which endpoint a path means."""

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
    """None hides another."""
    path = endpoint.http.path.replace("{", "x").replace("}", "x")  # type: ignore[attr-defined]  # an endpoint of ours
    found = ROUTER.find(endpoint.http.method, path.encode())  # type: ignore[attr-defined]  # likewise
    assert found.endpoint is endpoint


def test_parameters_are_decoded_each_by_itself() -> None:
    """A slash in a name is part of the name."""
    found = ROUTER.find("GET", b"/job/a%20b/artifact/c%2Fd%C3%A9")
    assert found.values == {"job_id": "a b", "name": "c/dé"}


def test_a_slash_at_the_end_does_not_matter() -> None:
    assert ROUTER.find("GET", b"/jobs/").endpoint.http.path == "/jobs"


def test_head_is_get() -> None:
    assert ROUTER.find("HEAD", b"/jobs").endpoint.http.method == "GET"


@pytest.mark.parametrize("path", sorted({endpoint.http.path for endpoint in ENDPOINTS}))
def test_a_path_takes_what_it_says_that_it_takes(path: str) -> None:
    """Every method in `Allow`, and no other; a HEAD where there is a GET, but not of a stream."""
    asked = path.replace("{", "x").replace("}", "x").encode()
    with pytest.raises(MethodNotAllowedError) as refused:
        ROUTER.find("BREW", asked)
    allowed = str(refused.value.details["allow"]).split(", ")
    for method in allowed:
        assert ROUTER.find(method, asked).endpoint.http.method in (method, "GET")
    for method in {"GET", "HEAD", "POST"}.difference(allowed):
        with pytest.raises(MethodNotAllowedError) as again:
            ROUTER.find(method, asked)
        assert again.value.details == refused.value.details
    got = [
        endpoint
        for endpoint in ENDPOINTS
        if endpoint.http.method == "GET" and _fits(endpoint.http.path, asked.decode())
    ]
    assert ("GET" in allowed) is bool(got)
    assert ("HEAD" in allowed) is any(not endpoint.http.streams for endpoint in got)


def _fits(template: str, path: str) -> bool:
    """Whether the path is one of these: `/jobs/retry`, a word to POST, is for GET the id of a job."""
    wanted, given = template.split("/"), path.split("/")
    return len(wanted) == len(given) and all(
        each.startswith("{") or each == part for each, part in zip(wanted, given, strict=True)
    )


@given(st.sampled_from(["GET", "POST", "PUT", "BREW"]), st.binary(max_size=60))
def test_any_path_is_found_or_refused(method: str, path: bytes) -> None:
    """404 or 405, whatever it is."""
    with suppress(NotFoundError, MethodNotAllowedError):
        ROUTER.find(method, b"/" + path)


def test_unknown_paths_do_not_fill_memory() -> None:
    """A path is looked up before anybody has shown a token, and may be 64 KiB long."""
    router = Router(ENDPOINTS)
    tracemalloc.start()
    try:
        for number in range(600):
            router.find("GET", b"/job/" + str(number).encode().zfill(20_000))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 2**20
