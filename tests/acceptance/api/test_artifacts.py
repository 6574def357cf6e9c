"""Artifacts are served from the roots, and from nowhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import answering
from builders.http import Api, an_api, an_api_workspace

SECRET = "canary-outside-the-roots"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root, with files in it, links that lead out of it, and one that does not."""
    base = tmp_path_factory.mktemp("files")
    root = base / "out"
    (root / "deep").mkdir(parents=True)
    (base / "secret.txt").write_text(SECRET)
    (root / "deep" / "page.html").write_text("<script>alert(1)</script>")
    (root / "data.bin").write_bytes(bytes(range(256)) * 4096)
    (root / "away.txt").symlink_to(base / "secret.txt")
    (root / "away").symlink_to(base)
    (root / "latest").symlink_to(root / "data.bin")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Api]:
    artifacts = [
        {"name": "data", "path": str(root / "data.bin"), "media_type": "application/x-thing"},
        {"name": "page", "path": "deep/page.html"},
        {"name": "latest", "path": str(root / "latest")},
        {"name": "odd type", "path": str(root / "data.bin"), "media_type": "text/html\r\nSet-Cookie: a=b"},
        {"name": "secret", "path": str(root.parent / "secret.txt")},
        {"name": "dots", "path": str(root / ".." / "secret.txt")},
        {"name": "relative dots", "path": "../secret.txt"},
        {"name": "link", "path": str(root / "away.txt")},
        {"name": "through a link", "path": str(root / "away" / "secret.txt")},
        {"name": "root", "path": str(root)},
        {"name": "folder", "path": str(root / "deep")},
        {"name": "pipe", "path": str(root / "pipe")},
        {"name": "gone", "path": str(root / "gone")},
        {"name": "web", "url": "https://example.org/x.png"},
    ]
    more = f"artifacts:\n  roots: [{json.dumps(str(root))}]\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), "  painter: {}\n", more=more)
    workspace.plugin("painter", answering({"status": "ok", "result": "done", "artifacts": artifacts}))
    with an_api(workspace) as api:
        yield api


@pytest.fixture(scope="module")
def job(api: Api) -> str:
    job_id: str = api.ended(api.post("/plugin/painter/poll")["job_id"])["job_id"]
    return job_id


def test_a_file_under_a_root(api: Api, job: str, root: Path) -> None:
    """The response has its bytes and its type, as a download that no browser takes for a page of Ductile."""
    response = api.ask("GET", f"/job/{job}/artifact/data")
    assert (response.status, response.content) == (200, (root / "data.bin").read_bytes())
    assert response.headers["content-type"] == "application/x-thing"
    page = api.ask("GET", f"/job/{job}/artifact/page")
    assert (page.status, page.headers["content-type"]) == (200, "text/html")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
    assert page.headers["content-security-policy"].startswith("sandbox")


def test_a_link_that_stays_inside(api: Api, job: str, root: Path) -> None:
    """The resolved path of the file decides."""
    assert api.ask("GET", f"/job/{job}/artifact/latest").content == (root / "data.bin").read_bytes()


def test_a_type_that_cannot_stand_in_a_header(api: Api, job: str) -> None:
    """A plugin cannot add headers to a response."""
    response = api.ask("GET", f"/job/{job}/artifact/odd%20type")
    assert (response.status, response.headers["content-type"]) == (200, "application/octet-stream")
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "dots",
        "relative%20dots",
        "link",
        "through%20a%20link",
        "root",
        "folder",
        "pipe",
        "gone",
        "web",
        "x",
    ],
)
def test_other_artifacts_are_not_found(api: Api, job: str, name: str) -> None:
    """Only files inside the roots are served, with links resolved."""
    response = api.ask("GET", f"/job/{job}/artifact/{name}")
    assert (response.status, response.code) == (404, "not_found")
    assert SECRET.encode() not in response.content


def test_without_roots_nothing_is_served(tmp_path: Path, root: Path) -> None:
    """The operator decides whether files are served."""
    workspace = an_api_workspace(tmp_path, "  painter: {}\n")
    artifacts = [{"name": "data", "path": str(root / "data.bin")}]
    workspace.plugin("painter", answering({"status": "ok", "result": "done", "artifacts": artifacts}))
    with an_api(workspace) as api:
        job_id = api.ended(api.post("/plugin/painter/poll")["job_id"])["job_id"]
        assert api.ask("GET", f"/job/{job_id}/artifact/data").status == 404
