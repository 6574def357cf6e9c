"""Which configuration is used (SPEC 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config
from ductile.config.locate import locate_config
from ductile.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_place_that_is_given_counts(tmp_path: Path) -> None:
    """SPEC 2.1: --config, DUCTILE_CONFIG_DIR, XDG_CONFIG_HOME, HOME, the system directory, in this order."""
    named, variable, xdg, home, system = (
        a_config(tmp_path / name)
        for name in ("named", "variable", "xdg/ductile", "home/.config/ductile", "system")
    )
    environ = {
        "DUCTILE_CONFIG_DIR": str(variable.parent),
        "XDG_CONFIG_HOME": str(xdg.parent.parent),
        "HOME": str(tmp_path / "home"),
    }
    assert locate_config(named.parent, environ, system=system.parent) == named
    assert locate_config(str(named), environ, system=system.parent) == named
    assert locate_config(None, environ, system=system.parent) == variable
    del environ["DUCTILE_CONFIG_DIR"]
    assert locate_config(None, environ, system=system.parent) == xdg
    del environ["XDG_CONFIG_HOME"]
    assert locate_config(None, environ, system=system.parent) == home
    home.unlink()
    assert locate_config(None, environ, system=system.parent) == system


def test_a_named_place_is_not_passed_over(tmp_path: Path) -> None:
    """What was named has to be there: another configuration must not be used in its stead."""
    system = a_config(tmp_path / "system").parent
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(ConfigError, match="there is no"):
            locate_config(missing, {}, system=system)
        with pytest.raises(ConfigError, match="there is no"):
            locate_config(None, {"DUCTILE_CONFIG_DIR": str(missing)}, system=system)


def test_a_url_is_no_place(tmp_path: Path) -> None:
    """SPEC 2.1: all paths are local."""
    with pytest.raises(ConfigError, match="URL"):
        locate_config("https://example.org/config.yaml", {}, system=tmp_path)


def test_none_at_all_says_where_was_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="home") as refused:
        locate_config(None, {"HOME": str(tmp_path / "home")}, system=tmp_path / "system")
    assert refused.value.hint is not None
    assert "ductile init" in refused.value.hint
