"""Several changes of the configuration become new contents of files, without writing any file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ductile.config.edit.edits import ConfigEdits, edit_files
from ductile.errors import ConfigError, NotFoundError, UsageError

MAIN = """\
include: [more.yaml]
service: {name: here}  # ours
plugins:
  timed:
    schedules: [{id: a}, {id: b}, {id: c}]
api:
  auth:
    tokens:
      - {name: agent, token: "${AGENT}", scopes: [jobs:rw]}
"""
MORE = """\
plugins:
  # kept
  report: {tiemout: 5s, uses: echo}
routes:
  - {from: a, event_type: x, to: b}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(MAIN)
    (tmp_path / "more.yaml").write_text(MORE)
    return tmp_path / "config.yaml"


def apply_edits(config: Path, **changes: object) -> dict[str, str]:
    files = edit_files(config, ConfigEdits(**changes))  # type: ignore[arg-type]
    return {path.name: data.decode() for path, data in files.items()}


def test_each_change_goes_to_the_file_that_defines_the_key(config: Path) -> None:
    """A new key goes to the file of its entry, a new entry to the main file; comments stay."""
    files = apply_edits(
        config,
        set={"routes[0].event_type": "y", "routes[+]": {"from": "c", "event_type": "z", "to": "d"}},
        unset=("plugins.report.tiemout",),
    )
    assert set(files) == {"more.yaml"}
    assert "# kept" in files["more.yaml"]
    assert "tiemout" not in files["more.yaml"]
    assert files["more.yaml"].index("event_type: y") < files["more.yaml"].index("event_type: z")
    assert "timeout: 5s" in apply_edits(config, set={"plugins.report.timeout": "5s"})["more.yaml"]
    assert "other: {}" in apply_edits(config, set={"plugins.other": {}})["config.yaml"]
    assert config.read_text() == MAIN


def test_indexes_are_those_before_the_change(config: Path) -> None:
    """Removing the first two entries leaves the third, in whichever order they are named."""
    for keys in (("[0]", "[1]"), ("[1]", "[0]")):
        files = apply_edits(config, unset=tuple(f"plugins.timed.schedules{index}" for index in keys))
        assert "{id: c}" in files["config.yaml"]
        assert "{id: a}" not in files["config.yaml"]
        assert "{id: b}" not in files["config.yaml"]


def test_scopes_of_tokens(config: Path) -> None:
    """The scopes are in the entry, or in the scope file with its hash."""
    assert "scopes: [jobs:ro]" in apply_edits(config, token_scopes={"agent": ("jobs:ro",)})["config.yaml"]
    with pytest.raises(NotFoundError, match="there is no token robot"):
        apply_edits(config, token_scopes={"robot": ("jobs:ro",)})
    with pytest.raises(UsageError, match="none"):
        apply_edits(config, token_scopes={"agent": ()})
    entry = "tokens:\n  - {name: robot, key: '${ROBOT}', scopes_file: robot.json, scopes_hash: 'blake3:00'}\n"
    config.write_text(MAIN + entry)
    (config.parent / "robot.json").write_text('{"scopes": ["jobs:rw"]}')
    files = apply_edits(config, token_scopes={"robot": ("jobs:ro",)})
    assert '"jobs:ro"' in files["robot.json"]
    assert "blake3:00" not in files["config.yaml"]
    config.write_text(MAIN + entry + entry.removeprefix("tokens:\n").replace("robot,", "second,"))
    with pytest.raises(ConfigError, match="second"):
        apply_edits(config, token_scopes={"robot": ("jobs:ro",)})


def test_what_cannot_be_changed(config: Path) -> None:
    """A key that is not set and a value that another file overrides cannot be changed."""
    with pytest.raises(NotFoundError, match=r"plugins\.nothing is not set"):
        apply_edits(config, unset=("plugins.nothing",))
    (config.parent / "more.yaml").write_text(MORE + "service: {name: there}\n")
    with pytest.raises(ConfigError, match=r"more\.yaml|config\.yaml"):
        apply_edits(config, set={"service": {"name": "other"}})
