"""The page and its files, as a browser fetches them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ductile.dashboard
from builders.http import Api, an_api, an_api_workspace

STATIC = Path(ductile.dashboard.__file__).parent / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
#: All that the page loads, without compression.
MAX_BYTES = 150 * 1024


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("api"))) as api:
        yield api


def base_path(api: Api) -> str:
    """Return the path below which the page loads its files."""
    page = api.ask("GET", "/ui", token=None).content.decode()
    match = re.search(r'src="(/ui/static/[0-9a-f]+)/main\.js"', page)
    assert match is not None, page
    return match[1]


def test_every_address_below_ui_is_the_page(api: Api) -> None:
    """Pages have addresses of their own, which can be sent to a colleague."""
    for path in ("/ui", "/ui/", "/ui/jobs?status=failed", "/ui/job/0123"):
        response = api.ask("GET", path, token=None)
        assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert api.ask("POST", "/ui/jobs", {}, token=None).code == "method_not_allowed"
    assert api.ask("GET", "/uikit", token=None).code == "not_found"


def test_nothing_but_our_own_files_may_be_loaded(api: Api) -> None:
    policy = api.ask("GET", "/ui", token=None).headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert "unsafe" not in policy
    assert "http" not in policy


def test_files_are_kept_for_ever_and_the_page_is_asked_for_again(api: Api) -> None:
    """The address of a file has the digest of all files, so a new version has new addresses."""
    page = api.ask("GET", "/ui", token=None)
    assert page.headers["cache-control"] == "no-cache"
    not_modified = api.ask("GET", "/ui", token=None, headers={"If-None-Match": page.headers["etag"]})
    assert (not_modified.status, not_modified.content) == (304, b"")
    for path in FILES:
        if path.name == "index.html":
            continue
        response = api.ask("GET", f"{base_path(api)}/{path.relative_to(STATIC).as_posix()}", token=None)
        assert response.content == path.read_bytes()
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert api.ask("GET", "/ui/static/0123/main.js", token=None).code == "not_found"
    assert api.ask("GET", f"{base_path(api)}/../__init__.py", token=None).code == "not_found"


def test_files_are_sent_compressed(api: Api) -> None:
    response = api.ask(
        "GET", f"{base_path(api)}/main.js", token=None, headers={"Accept-Encoding": "br, gzip"}
    )
    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(response.content) == (STATIC / "main.js").read_bytes()


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) <= MAX_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_text_can_become_markup_or_script(path: Path) -> None:
    """Text of plugins and payloads is only put into text nodes."""
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc"
        r"|\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:|\sstyle=|\son\w+=[\"']"
    )
    assert not re.findall(forbidden, path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[\w.-]+[\w/.-]*", path.read_text())) <= allowed


def test_a_browser_that_opens_the_address_of_the_daemon_gets_the_dashboard(api: Api) -> None:
    """A program gets JSON with a link to the dashboard."""
    browser = api.ask("GET", "/", token=None, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (browser.status, browser.headers["location"]) == (302, "/ui")
    program = api.ask("GET", "/", token=None, headers={"Accept": "*/*"})
    assert (program.status, program.body["links"]["dashboard"]) == (200, "/ui")
