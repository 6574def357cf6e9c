"""Every tutorial and how-to can be followed from the first line to the last; links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from builders.pages import Reader
from builders.postgres import store_url

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")])
ALL_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def a_reader(directory: Path) -> Reader:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return Reader(directory=directory, environment={"PATH": path, "HOME": str(directory), "LANG": "C.UTF-8"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    reader = a_reader(tmp_path)
    if page.stem in ("use-postgresql", "run-on-several-machines"):
        reader.environment["DATABASE_URL"] = store_url(tmp_path)
    assert reader.follow(page.read_text(encoding="utf-8")), "the page has no command in it"


def test_the_tutorial_s_plugin_is_sealed_runs_and_passes_its_test(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "first-plugin.md"
    printed = a_reader(tmp_path).follow(page.read_text(encoding="utf-8"))
    sealed_index = next(index for index, output in enumerate(printed) if "Sealed these files." in output)
    check_output, configured_output, output_with_payload = printed[sealed_index + 1 : sealed_index + 4]
    assert "greet" in printed[sealed_index]
    assert check_output.startswith("ok:")
    assert "warning" not in check_output
    assert (configured_output, output_with_payload) == ("hello Ada\n", "hello Bob\n")
    assert printed[-1].rstrip().endswith("ok: greet, 7 checks passed, 2 checks warned")


def test_the_webhook_of_the_tutorial_runs_a_delivery_once(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorials" / "first-webhook.md"
    *_, repeated_response, job_list, _stopped = a_reader(tmp_path).follow(page.read_text(encoding="utf-8"))
    (job,) = json.loads(job_list)["jobs"]
    assert (job["plugin"], job["submitted_by"]) == ("chime", "webhook")
    assert job["job_id"] in repeated_response


def test_the_readme_can_be_followed(tmp_path: Path) -> None:
    """Beside the daemon of `make run`, each command prints what its comment says."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = a_reader(tmp_path).follow(page)
    expected = re.findall(r"^ductile (?:pipeline )?run .*?  +# (.+)$", page, re.MULTILINE)
    assert expected == ["hello from Ductile", "hello Ada, good to see you", "saved photos"]
    assert [text for text in expected if not any(f"{text}\n" in output for output in printed)] == []


def test_the_readme_begins_with_the_two_commands() -> None:
    """The first commands come before the text to read."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [line.split("  ")[0] for line in commands[0].splitlines()] == ["make run", "make test"]
    assert commands[1].splitlines()[1].startswith("ductile run echo ")


#: Commands that need no configuration, or are only mentioned.
_WITHOUT_CONFIG = re.compile(
    r"ductile (init|plugin (new|test|check)|config schema|system (backup|restore)|\S+ --help)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_text_can_be_typed_where_the_page_is_followed(page: Path) -> None:
    """A page that names its configuration does so for every command, also those that no test runs."""
    text = page.read_text(encoding="utf-8")
    if "--config ." not in text:
        return
    inline = re.findall(r"`(ductile [^`\n]+)`", text)
    in_blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands_in_blocks = [
        line for block in in_blocks for line in block.splitlines() if line.startswith("ductile ")
    ]
    commands = [line for line in (*inline, *commands_in_blocks) if not _WITHOUT_CONFIG.match(line)]
    without_config = [line for line in commands if "--config" not in line and "/" not in line]
    assert without_config == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
