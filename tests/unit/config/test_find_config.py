"""Finds the configuration that is used."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.configs import a_config
from ductile.config.find_config import find_config
from ductile.errors import ConfigError

NOBODY = 65534


@contextmanager
def shut(directory: Path) -> Iterator[None]:
    """Close a directory. Root may enter any, so the test runs as another user meanwhile."""
    before = os.geteuid()
    directory.chmod(0o000)
    os.seteuid(NOBODY if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)
        directory.chmod(0o700)


def test_the_order_of_the_search(tmp_path: Path) -> None:
    """--config, DUCTILE_CONFIG_DIR, XDG_CONFIG_HOME, HOME, the system directory."""
    named, variable, xdg, home, system = (
        a_config(tmp_path / name)
        for name in ("named", "variable", "xdg/ductile", "home/.config/ductile", "system")
    )
    environ = {
        "DUCTILE_CONFIG_DIR": str(variable.parent),
        "XDG_CONFIG_HOME": str(xdg.parent.parent),
        "HOME": str(tmp_path / "home"),
    }
    assert find_config(named.parent, environ, system=system.parent) == named
    assert find_config(str(named), environ, system=system.parent) == named
    assert find_config(None, environ, system=system.parent) == variable
    del environ["DUCTILE_CONFIG_DIR"]
    assert find_config(None, environ, system=system.parent) == xdg
    del environ["XDG_CONFIG_HOME"]
    assert find_config(None, environ, system=system.parent) == home
    home.unlink()
    assert find_config(None, environ, system=system.parent) == system


def test_a_configuration_in_the_working_directory_is_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not used unless it is named."""
    here = a_config(tmp_path / "here").parent
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError) as refused:
        find_config(None, {"HOME": str(tmp_path)}, system=tmp_path / "system")
    assert refused.value.hint == "there is one in this directory: add `--config .`"
    a_config(tmp_path / "beside" / "demo")
    monkeypatch.chdir(tmp_path / "beside")
    with pytest.raises(ConfigError) as refused:
        find_config(None, {"HOME": str(tmp_path)}, system=tmp_path / "system")
    assert refused.value.hint == "there is one in demo: add `--config demo`"


def test_an_unreadable_usual_directory_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may lack access to homes. It is an error only if no other directory has a configuration."""
    home, system = tmp_path / "home", a_config(tmp_path / "system")
    stat = Path.stat

    def closed(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if home in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", closed)
    assert find_config(None, {"HOME": str(home)}, system=system.parent) == system
    with pytest.raises(ConfigError, match="Permission denied"):
        find_config(None, {"HOME": str(home)}, system=tmp_path / "nothing")


def test_a_named_directory_is_not_skipped(tmp_path: Path) -> None:
    """Another configuration must not be used instead."""
    system = a_config(tmp_path / "system").parent
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(ConfigError, match="there is no"):
            find_config(missing, {}, system=system)
        with pytest.raises(ConfigError, match="there is no"):
            find_config(None, {"DUCTILE_CONFIG_DIR": str(missing)}, system=system)


def test_a_url_is_refused(tmp_path: Path) -> None:
    """All paths are local."""
    with pytest.raises(ConfigError, match="URL"):
        find_config("https://example.org/config.yaml", {}, system=tmp_path)


def test_without_any_the_error_names_the_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the example of `make run` lies below the repository
    with pytest.raises(ConfigError, match="home") as refused:
        find_config(None, {"HOME": str(tmp_path / "home")}, system=tmp_path / "system")
    assert refused.value.hint is not None
    assert "ductile init" in refused.value.hint


@pytest.mark.parametrize("named", [True, False])
def test_an_unreadable_directory_is_reported_with_its_owner(tmp_path: Path, *, named: bool) -> None:
    """This happens in a container that runs as another user than the owner of the mounted directory."""
    directory = a_config(tmp_path / "home" / ".config" / "ductile").parent
    owner = os.geteuid()
    with shut(directory), pytest.raises(ConfigError, match="cannot be read: Permission denied") as refused:
        find_config(directory if named else None, {"HOME": str(tmp_path / "home")}, system=tmp_path)
    others = f"belongs to user {owner}, and this runs as user {NOBODY}"
    assert (others if owner == 0 else f"the permissions of {directory}") in str(refused.value.hint)


def test_an_invalid_file_name_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration"):
        find_config("nul\0", {}, system=tmp_path)
