"""Every tutorial and how-to does what it says, from the first line to the last; links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders.pages import Reader

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")])
ALL_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def a_reader(directory: Path) -> Reader:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return Reader(directory=directory, environment={"PATH": path, "HOME": str(directory), "LANG": "C.UTF-8"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    assert a_reader(tmp_path).follow(page.read_text(encoding="utf-8")), "the page has no command in it"


def test_the_tutorial_ends_with_an_active_and_sealed_plugin(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "first-plugin.md"
    *_, sealed, checked = a_reader(tmp_path).follow(page.read_text(encoding="utf-8"))
    assert "greet" in sealed
    assert checked.startswith("ok:")
    assert "warning" not in checked


def test_the_webhook_of_the_tutorial_runs_a_delivery_once(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "first-webhook.md"
    *_, repeated, listed, _stopped = a_reader(tmp_path).follow(page.read_text(encoding="utf-8"))
    (job,) = json.loads(listed)["jobs"]
    assert (job["plugin"], job["submitted_by"]) == ("chime", "webhook")
    assert job["job_id"] in repeated


def test_the_readme_s_plugin_is_a_plugin_and_answers(tmp_path: Path) -> None:
    """The ten lines on the first screen pass `plugin check` and speak the protocol."""
    reader = a_reader(tmp_path)
    reader.follow((ROOT / "README.md").read_text(encoding="utf-8"))
    plugin = tmp_path / "plugins" / "greet"
    (plugin / "run.py").chmod(0o755)
    reader.follow(f"```sh\nductile plugin check {plugin}\n```\n")
    request = json.dumps({"protocol": 2, "command": "handle", "config": {}, "payload": {"name": "Ada"}})
    answer = subprocess.run([plugin / "run.py"], input=request, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["result"] == "hello Ada"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
