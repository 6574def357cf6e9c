"""Finds the configuration that is used."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import fields

from builders.configs import a_config
from ductile.config.find_config import SECTIONS, find_config, locate_config
from ductile.config.schema.model import Config
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


@pytest.mark.parametrize("name", [".", "demo", "conf"])
def test_a_configuration_in_the_working_directory_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After DUCTILE_CONFIG_DIR and before the user's own; `.` before `./demo` before `./conf`."""
    user = a_config(tmp_path / "home" / ".config" / "ductile")
    variable = a_config(tmp_path / "variable")
    here = tmp_path / "here"
    (here / name).mkdir(parents=True)
    monkeypatch.chdir(here)
    environ = {"HOME": str(tmp_path / "home")}
    assert find_config(None, environ, system=tmp_path) == user
    local = a_config(here / name, "plugins: {}\n")
    found = locate_config(None, environ, system=tmp_path)
    assert found.path == local
    assert found.origin == ("found in the working directory" if name == "." else f"found in ./{name}")
    assert find_config(None, environ | {"DUCTILE_CONFIG_DIR": str(variable.parent)}) == variable
    if name == "conf":
        assert a_config(here / "demo", "plugins: {}\n") == find_config(None, environ)


@pytest.mark.parametrize("fault", ["file", "group", "directory", "link", "linked directory"])
def test_a_configuration_that_others_can_change_is_not_taken(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is decided by who can write it. The error says so, and how to use it nevertheless."""
    here = tmp_path / "here"
    file = a_config(here / "demo", "plugins: {}\n")
    monkeypatch.chdir(here)
    environ = {"HOME": str(tmp_path / "home")}
    assert find_config(None, environ, system=tmp_path) == file
    match fault:
        case "file":
            file.chmod(0o646)
        case "group":
            file.chmod(0o664)
            if os.geteuid() != 0:
                pytest.skip("a file of another group is needed")
            os.chown(file, 0, NOBODY)
        case "directory":
            file.parent.chmod(0o757)
        case "link":
            (here / "other.yaml").write_text("plugins: {}\n")
            file.unlink()
            file.symlink_to(here / "other.yaml")
        case _:
            file.parent.rename(here / "real")
            (here / "demo").symlink_to(here / "real")
    with pytest.raises(ConfigError, match=r"demo/config\.yaml is ") as refused:
        find_config(None, environ, system=tmp_path / "system")
    assert "--config" in str(refused.value.hint)
    system = a_config(tmp_path / "system")
    found = locate_config(None, environ, system=system.parent)
    assert found.path == system
    assert "demo/config.yaml" in found.skipped_reasons[0]
    assert find_config("demo", environ) == here / "demo" / "config.yaml"


def test_a_configuration_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_config(tmp_path, "plugins: {}\n")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    monkeypatch.chdir(tmp_path)
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        find_config(None, {"HOME": str(tmp_path)}, system=tmp_path / "system")


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        ("plugins: {}\n", True),
        ("service:\n  name: x\nplugns: {}\n", True),
        ('# only a comment\n"plugins":\n  echo: {}\n', True),
        ("include: [a.yaml]\n", True),
        ("", False),
        ("title: my site\nbaseURL: https://example.org\nparams: {}\n", False),
        ("receivers: {}\nexporters: {}\nservice: {}\nprocessors: {}\n", False),
        ("database:\n  plugins: {}\n", False),
        ("plguins: {}\n", False),
    ],
)
def test_a_configuration_of_another_program_is_not_taken(
    content: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least half of its sections have to be ours; a seal beside it is proof."""
    a_config(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")}
    if not ours:
        with pytest.raises(ConfigError, match="another program"):
            find_config(None, environ, system=tmp_path / "system")
        (tmp_path / ".checksums").write_text("{}")
    assert find_config(None, environ, system=tmp_path / "system") == tmp_path / "config.yaml"


def test_the_sections_are_those_of_the_schema() -> None:
    assert {field.encode_name for field in fields(Config)} == SECTIONS


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
