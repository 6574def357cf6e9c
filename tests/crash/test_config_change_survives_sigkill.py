"""A rollback that is killed between any two replacements of files can be finished, and taken back."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from builders.configs import a_config
from ductile.admin.apply import finish_or_undo_change, plan_offline
from ductile.admin.config import open_configuration
from ductile.config.file_io import journal_path
from ductile.config.history.seal_log import list_seals
from ductile.errors import IntegrityError

NAMES = ("config.yaml", "conf.d/a.yaml", "conf.d/b.yaml", "conf.d/c.yaml")
WORKER = Path(__file__).with_name("interrupted_change.py")


def files(directory: Path) -> dict[str, bytes | None]:
    return {name: path.read_bytes() if (path := directory / name).exists() else None for name in NAMES}


def apply(config: Path) -> None:
    plan_offline(str(config), {}).write("apply")


def two_configurations(directory: Path) -> Path:
    """Seal two configurations, one after the other. Two files change, one is added, one is removed."""
    (directory / "plugins").mkdir(parents=True)
    config = a_config(directory, "include: [conf.d]\nservice: {max_workers: 1}\n")
    (directory / "conf.d").mkdir()
    (directory / "conf.d" / "a.yaml").write_text("service: {tick_interval: 10s}\n")
    (directory / "conf.d" / "b.yaml").write_text("service: {log_level: debug}\n")
    apply(config)
    config.write_text("include: [conf.d]\nservice: {max_workers: 2}\n")
    (directory / "conf.d" / "a.yaml").write_text("service: {tick_interval: 20s}\n")
    (directory / "conf.d" / "b.yaml").unlink()
    (directory / "conf.d" / "c.yaml").write_text("service: {log_format: text}\n")
    apply(config)
    return config


@pytest.mark.parametrize("undo", [False, True], ids=["finish", "undo"])
def test_a_killed_rollback_is_finished_or_taken_back(tmp_path: Path, undo: bool) -> None:
    """Before that, the configuration is neither loaded nor changed. A mixture is never in force."""
    config = two_configurations(tmp_path / "origin")
    first, second = list_seals(config.parent)
    new = files(config.parent)
    interrupted, directory = 0, tmp_path
    for die_at in count(1):
        directory = tmp_path / str(die_at)
        shutil.copytree(config.parent, directory)
        copied_config = directory / config.name
        words = [sys.executable, str(WORKER), str(copied_config), first.id, str(die_at)]
        result = subprocess.run(words, check=False, capture_output=True, timeout=120)
        if result.returncode != -signal.SIGKILL:
            assert result.returncode == 0, result.stderr
            break
        if not journal_path(directory).exists():  # before the first file, or after the last
            assert files(directory) in (new, files_of_first())
            open_configuration(copied_config, {})
            continue
        interrupted += 1
        with pytest.raises(IntegrityError, match="was interrupted"):
            open_configuration(copied_config, {})
        with pytest.raises(IntegrityError, match="was interrupted"):
            apply(copied_config)
        finish_or_undo_change(str(copied_config), {}, undo=undo)
        assert files(directory) == (new if undo else files_of_first())
        open_configuration(copied_config, {})
    assert interrupted >= 5
    assert files(directory) == files_of_first()
    assert second.id != first.id


def files_of_first() -> dict[str, bytes | None]:
    return {
        "config.yaml": b"include: [conf.d]\nservice: {max_workers: 1}\n",
        "conf.d/a.yaml": b"service: {tick_interval: 10s}\n",
        "conf.d/b.yaml": b"service: {log_level: debug}\n",
        "conf.d/c.yaml": None,
    }
