"""The search for the configuration file."""

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
def closed_directory(directory: Path) -> Iterator[None]:
    """Close a directory. Root may enter any directory, so the test runs as another user meanwhile."""
    before = os.geteuid()
    directory.chmod(0o000)
    os.seteuid(NOBODY if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)
        directory.chmod(0o700)


def test_the_order_of_the_search(tmp_path: Path) -> None:
    """The order is --config, DUCTILE_CONFIG_DIR, XDG_CONFIG_HOME, HOME, the system directory."""
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
    """It comes after DUCTILE_CONFIG_DIR and before the configuration of the user; `.` before `./demo`
    before `./conf`.
    """
    user = a_config(tmp_path / "home" / ".config" / "ductile")
    variable = a_config(tmp_path / "variable")
    working_directory = tmp_path / "here"
    (working_directory / name).mkdir(parents=True)
    monkeypatch.chdir(working_directory)
    environ = {"HOME": str(tmp_path / "home")}
    assert find_config(None, environ, system=tmp_path) == user
    local = a_config(working_directory / name, "plugins: {}\n")
    location = locate_config(None, environ, system=tmp_path)
    assert location.path == local
    assert location.origin == ("found in the working directory" if name == "." else f"found in ./{name}")
    assert find_config(None, environ | {"DUCTILE_CONFIG_DIR": str(variable.parent)}) == variable
    if name == "conf":
        assert a_config(working_directory / "demo", "plugins: {}\n") == find_config(None, environ)


@pytest.mark.parametrize("fault", ["file", "group", "directory", "link", "linked directory"])
def test_a_configuration_that_others_can_change_is_not_taken(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write access to the file allows running programs. The error explains the refusal and names
    `--config`.
    """
    working_directory = tmp_path / "here"
    file = a_config(working_directory / "demo", "plugins: {}\n")
    monkeypatch.chdir(working_directory)
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
            (working_directory / "other.yaml").write_text("plugins: {}\n")
            file.unlink()
            file.symlink_to(working_directory / "other.yaml")
        case _:
            file.parent.rename(working_directory / "real")
            (working_directory / "demo").symlink_to(working_directory / "real")
    with pytest.raises(ConfigError, match=r"demo/config\.yaml is ") as excinfo:
        find_config(None, environ, system=tmp_path / "system")
    assert "--config" in str(excinfo.value.hint)
    system = a_config(tmp_path / "system")
    location = locate_config(None, environ, system=system.parent)
    assert location.path == system
    assert "demo/config.yaml" in location.skipped_reasons[0]
    assert find_config("demo", environ) == working_directory / "demo" / "config.yaml"


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
    ("content", "is_ours"),
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
    content: str, is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least half of the sections have to be sections of Ductile, or a seal has to lie beside the file."""
    a_config(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")}
    if not is_ours:
        with pytest.raises(ConfigError, match="another program"):
            find_config(None, environ, system=tmp_path / "system")
        (tmp_path / ".checksums").write_text("{}")
    assert find_config(None, environ, system=tmp_path / "system") == tmp_path / "config.yaml"


def test_the_sections_are_those_of_the_schema() -> None:
    assert {field.encode_name for field in fields(Config)} == SECTIONS


def test_an_unreadable_usual_directory_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may lack access to homes. An error is reported only if no other directory has a
    configuration.
    """
    home, system = tmp_path / "home", a_config(tmp_path / "system")
    stat = Path.stat

    def refuse_stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if home in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse_stat)
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
    with pytest.raises(ConfigError, match="home") as excinfo:
        find_config(None, {"HOME": str(tmp_path / "home")}, system=tmp_path / "system")
    assert excinfo.value.hint is not None
    assert "ductile init" in excinfo.value.hint


@pytest.mark.parametrize("named", [True, False])
def test_an_unreadable_directory_is_reported_with_its_owner(tmp_path: Path, *, named: bool) -> None:
    """A container may run as another user than the owner of the mounted directory."""
    directory = a_config(tmp_path / "home" / ".config" / "ductile").parent
    owner = os.geteuid()
    with (
        closed_directory(directory),
        pytest.raises(ConfigError, match="cannot be read: Permission denied") as excinfo,
    ):
        find_config(directory if named else None, {"HOME": str(tmp_path / "home")}, system=tmp_path)
    owner_hint = f"belongs to user {owner}, and this runs as user {NOBODY}"
    assert (owner_hint if owner == 0 else f"the permissions of {directory}") in str(excinfo.value.hint)


def test_an_invalid_file_name_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration"):
        find_config("nul\0", {}, system=tmp_path)
