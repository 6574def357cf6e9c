"""file_watch and folder_watch on real files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builders.shipped import PluginResult, ask

OLD = 1_700_000_000


@dataclass
class PolledPlugin:
    """A plugin whose polls follow one another with the state that Ductile would keep for it."""

    plugin: str
    config: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)

    def poll(self) -> PluginResult:
        response = ask(self.plugin, "poll", config=self.config, state=self.state)
        self.state |= response.state
        return response

    def poll_events(self) -> list[tuple[str, str]]:
        response = self.poll()
        assert response.kind == "ok", response
        return [(event["type"], Path(event["payload"]["path"]).name) for event in response.events]


def write(path: Path, text: str, at: float = OLD) -> None:
    """Write a file with a given time of change: two writes may be in one tick of the file system's clock."""
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_file_is_followed_from_its_creation_to_its_end(tmp_path: Path) -> None:
    """A file is created, changed and deleted; an unchanged file makes no event."""
    path = tmp_path / "a"
    plugin = PolledPlugin("file_watch", {"paths": [str(path)]})
    assert plugin.poll_events() == []
    write(path, "one")
    assert plugin.poll_events() == [("file.created", "a")]
    assert plugin.poll_events() == []
    write(path, "two", OLD + 1)
    assert plugin.poll_events() == [("file.changed", "a")]
    write(path, "two", OLD + 2)
    assert plugin.poll_events() == [], "written again, with the same content"
    path.unlink()
    assert plugin.poll_events() == [("file.deleted", "a")]
    assert plugin.poll_events() == []


@pytest.mark.parametrize("initial", [False, True])
def test_existing_files_are_reported_only_on_request(tmp_path: Path, initial: bool) -> None:
    write(tmp_path / "a", "one")
    plugin = PolledPlugin("file_watch", {"paths": str(tmp_path / "a"), "initial": initial})
    assert plugin.poll_events() == ([("file.created", "a")] if initial else [])
    assert plugin.poll_events() == []


def test_an_event_of_a_file_describes_it(tmp_path: Path) -> None:
    write(tmp_path / "a", "one")
    response = PolledPlugin("file_watch", {"paths": [str(tmp_path / "a")], "initial": True}).poll()
    assert response.events[0]["payload"] == {
        "path": str(tmp_path / "a"),
        "name": "a",
        "size": 3,
        "modified_at": "2023-11-14T22:13:20Z",
        "sha256": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
    }


def test_large_files_are_compared_without_reading_them(tmp_path: Path) -> None:
    plugin = PolledPlugin("file_watch", {"paths": [str(tmp_path / "a")], "max_hash_bytes": 2})
    write(tmp_path / "a", "one")
    plugin.poll()
    write(tmp_path / "a", "one", OLD + 1)
    assert plugin.poll_events() == [("file.changed", "a")]


def test_an_unwatchable_file_is_reported(tmp_path: Path) -> None:
    for paths in ([], None, ["relative"], [5], [""]):
        response = ask("file_watch", "health", config={"paths": paths})
        assert response.failed_for_good("`paths`") or paths == []
    assert ask("file_watch", "poll", config={"paths": [str(tmp_path)]}).failed_for_good("is not a file")


def a_folder(tmp_path: Path, **config: Any) -> tuple[Path, PolledPlugin]:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder, PolledPlugin("folder_watch", {"path": str(folder), **config})


def test_a_folder_s_files_come_change_and_go(tmp_path: Path) -> None:
    """Files are added, changed and removed, each with one event."""
    folder, plugin = a_folder(tmp_path)
    assert plugin.poll_events() == []
    write(folder / "b", "one")
    write(folder / "a", "one")
    assert plugin.poll_events() == [("folder.added", "a"), ("folder.added", "b")]
    assert plugin.poll_events() == []
    write(folder / "a", "longer", OLD + 1)
    (folder / "b").unlink()
    assert plugin.poll_events() == [("folder.removed", "b"), ("folder.changed", "a")]
    assert plugin.poll_events() == []


def test_files_in_a_folder_at_first_make_no_event(tmp_path: Path) -> None:
    folder, plugin = a_folder(tmp_path)
    write(folder / "a", "one")
    assert plugin.poll().answer["result"] == "1 files to begin with"
    assert plugin.poll_events() == []
    plugin_with_initial = PolledPlugin("folder_watch", {**plugin.config, "initial": True})
    assert plugin_with_initial.poll_events() == [("folder.added", "a")]


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """A file is reported once it has stayed the same for `settle` seconds."""
    folder, plugin = a_folder(tmp_path, settle=1000)
    plugin.poll()
    write(folder / "a", "half", at=time.time())
    response = plugin.poll()
    assert (response.events, response.answer["result"]) == (
        [],
        "0 added, 0 changed, 0 removed, 1 still being written",
    )
    (folder / "a").unlink()
    assert plugin.poll_events() == [], "it was never reported, so neither is its end"
    write(folder / "a", "whole", at=time.time() - 2000)
    assert plugin.poll_events() == [("folder.added", "a")]


def test_a_clock_that_is_ahead_does_not_hold_a_file_back_for_ever(tmp_path: Path) -> None:
    """A file is reported also when it has stayed the same by the clock of this machine."""
    folder, plugin = a_folder(tmp_path, settle=0.001)
    plugin.poll()
    write(folder / "a", "x", at=time.time() + 10_000)
    assert plugin.poll_events() == []
    assert plugin.poll_events() == [("folder.added", "a")]


def test_patterns_choose_the_files(tmp_path: Path) -> None:
    folder, plugin = a_folder(tmp_path, patterns=["*.pdf", "in/*.txt"], recursive=True, initial=True)
    for name in ("a.pdf", "b.txt", ".c.pdf", "d.pdf.part", "in/e.txt", "in/f.pdf", ".git/g.pdf"):
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name, "x")
    (folder / "link.pdf").symlink_to(folder / "a.pdf")
    assert [name for _, name in plugin.poll_events()] == ["a.pdf", "e.txt", "f.pdf"]
    assert PolledPlugin("folder_watch", {**plugin.config, "recursive": False}).poll_events() == [
        ("folder.added", "a.pdf")
    ]


def test_a_name_that_is_no_text_does_not_stop_the_watch(tmp_path: Path) -> None:
    """Names are bytes, and a response is UTF-8."""
    folder, plugin = a_folder(tmp_path, initial=True)
    write(folder / "a", "x")
    write(Path(os.fsdecode(os.fsencode(folder) + b"/\xff")), "x")
    response = plugin.poll()
    assert [event["payload"]["name"] for event in response.events] == ["a"]
    assert "not UTF-8" in response.stderr


def test_a_folder_that_is_gone_is_a_failure_and_not_the_end_of_its_files(tmp_path: Path) -> None:
    """A disk that is not mounted for a while does not look like deleted files."""
    folder, plugin = a_folder(tmp_path, initial=True)
    write(folder / "a", "x")
    plugin.poll()
    folder.rename(tmp_path / "away")
    assert plugin.poll().may_be_tried_again("cannot be read")
    (tmp_path / "away").rename(folder)
    assert plugin.poll_events() == []


def test_a_poll_tells_a_bounded_number_and_the_next_goes_on(tmp_path: Path) -> None:
    """A response has at most 1,000 events."""
    folder, plugin = a_folder(tmp_path, initial=True)
    for number in range(501):
        write(folder / f"{number:03}", "x")
    assert len(plugin.poll_events()) == 500
    assert plugin.poll_events() == [("folder.added", "500")]


def test_too_many_files_are_an_error_before_the_state_is_too_large(tmp_path: Path) -> None:
    """The state is limited to 1 MiB."""
    folder, plugin = a_folder(tmp_path, max_files=2)
    for number in range(3):
        write(folder / str(number), "x")
    assert plugin.poll().failed_for_good("more than 2 files")


@pytest.mark.parametrize("config", [{}, {"path": "relative"}, {"path": "/x", "settle": "long"}])
def test_an_unwatchable_folder_is_reported(config: dict[str, Any]) -> None:
    assert ask("folder_watch", "health", config=config).failed_for_good("config")
