"""The input and output of a new user, word for word.

Each scenario is a prepared directory and the lines typed there. Their output is compared with the file of the
scenario's name in `golden/`. With UPDATE_GOLDEN=1 in the environment the files are written anew, for a person
to review the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from builders.daemons import BROKEN, answering
from builders.plugins import a_manifest, a_plugin
from builders.terminal import Terminal

GOLDEN = Path(__file__).parent / "golden"
CHECK = "ductile config check --config demo"


class Scenario(NamedTuple):
    arrange: Callable[[Path], None]
    lines: tuple[str, ...]


def an_empty_directory(_: Path) -> None:
    """Leave the directory empty."""


def a_config(text: str, **files: str) -> Callable[[Path], None]:
    """Return a function that writes a configuration with one plugin into `demo`, and further files by their
    stem.
    """

    def arrange(directory: Path) -> None:
        a_plugin(directory / "demo" / "plugins")
        (directory / "demo" / "config.yaml").write_text(text)
        for stem, content in files.items():
            (directory / "demo" / f"{stem}.yaml").write_text(content)

    return arrange


def a_starter(*edits: tuple[str, str, str]) -> Callable[[Path], None]:
    """Return a function that writes the files of `ductile init`, with edits: file, old text, new text."""

    def arrange(directory: Path) -> None:
        assert Terminal(directory=directory).ductile("init", "demo").status == 0
        for file, old, new in edits:
            path = directory / "demo" / file
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))

    return arrange


def refused_plugins(directory: Path) -> None:
    a_config("plugins: {echo: {}, gone: {}, open: {}, wrong: {}}\n")(directory)
    root = directory / "demo" / "plugins"
    (root / "echo" / "run.sh").chmod(0o644)
    a_plugin(root, "open").chmod(0o777)
    manifest = a_manifest("wrong", extra="timeout: soon\n").replace(
        "[poll, handle, health]", "{poll: {type: peek}}"
    )
    a_plugin(root, "wrong", manifest=manifest)
    (root / "half-done").mkdir()
    (root / "half-done" / "run.py").write_text("")


def a_broken_plugin(directory: Path) -> None:
    # The next attempt is still in the future when the last line is typed, on any machine.
    broken = "{retry: {backoff_base: 1h}}"
    a_config(f"plugins:\n  echo: {{}}\n  broken: {broken}\n  table: {{}}\n")(directory)
    root = directory / "demo" / "plugins"
    a_plugin(root, "broken", script=BROKEN)
    a_plugin(root, "table", script=answering({"status": "ok", "result": {"rows": 2}}))


SCENARIOS = {
    "without_a_daemon": Scenario(
        a_broken_plugin,
        (
            "ductile status --config demo",
            "ductile run echo --config demo",
            "ductile run table --config demo",
            "ductile run broken --retry --config demo",
            "ductile run ecko --config demo",
            "ductile run echo shout --config demo",
            """ductile run echo --payload '{"a": }' --config demo""",
            "ductile run echo --dry-run --config demo",
            "ductile job list --config demo",
            "ductile queue --config demo",
            "ductile queue status --config demo",
            "ductile queue statsu --config demo",
            "ductile status --config demo",
            "ductile schedule list --config demo",
            "ductile schedule pause echo --config demo",
            "ductile system breaker brokn --config demo",
            "ductile queue purge --config demo",
            "ductile queue purge broken --dry-run --config demo",
            "ductile queue purge broken --config demo",
            "ductile queue purge --all --json --config demo",
            "ductile job list --status dead --config demo",
            "ductile job show 01234567 --config demo",
            "ductile system start --dry-run --config demo",
            "ductile system stop --config demo",
            "ductile reload --json --config demo",
        ),
    ),
    "first_steps": Scenario(
        an_empty_directory,
        (
            "ductile init demo --dry-run",
            "ductile init demo",
            CHECK,
            "ductile plugin list --config demo",
            "ductile plugin show echo --config demo",
            "ductile config get service.log_level --config demo",
            "ductile config set service.log_level debug --config demo --dry-run",
            "ductile config set service.log_level debug --config demo",
            CHECK,
            "ductile config lock --config demo",
            CHECK,
            "ductile config set service.log_level warn --lock --config demo",
            "ductile config set service.log_level warn --config demo",
            CHECK,
            "ductile config show plugins.announce --config demo",
            "ductile plugin check --config demo",
            "ductile init demo",
        ),
    ),
    "first_steps_json": Scenario(
        an_empty_directory,
        (
            "ductile init demo --dry-run --json",
            "ductile init demo --json",
            f"{CHECK} --json",
            "ductile plugins --config demo --json",
            "ductile plugin show announce --config demo --json",
            "ductile config get service.log_level --config demo --json",
            "ductile config set service.log_level debug --config demo --dry-run --json",
            "ductile config set service.log_level debug --config demo --json",
            f"{CHECK} --json",
            "ductile config lock --config demo --json",
            "ductile config show service --config demo --json",
            "ductile plugin check echo --config demo --json",
            "ductile init demo --json",
        ),
    ),
    "help": Scenario(
        an_empty_directory,
        (
            "ductile",
            "ductile --help",
            "ductile config --help",
            "ductile config set --help",
            "ductile help plugin check",
            "ductile queue --help",
            "ductile run --help",
        ),
    ),
    "a_new_plugin": Scenario(
        an_empty_directory,
        (
            "ductile plugin new greet --dry-run",
            "ductile plugin new greet --lang sh --dir plugins",
            "ductile plugin test plugins/greet",
            "ductile plugin test plugins/greet --json",
            "ductile plugin test plugins/greet --command dance",
            "ductile plugin new greet --dir plugins",
            "ductile plugin new crab --lang rust --json --dry-run",
            "ductile plugin new 9lives",
            "ductile plugin test --help",
        ),
    ),
    "unknown_command": Scenario(
        an_empty_directory,
        (
            "ductile confg check",
            "ductile config chekc",
            "ductile config check --jsno",
            "ductile config get",
            "ductile config check and more",
            "ductile frobnicate --json",
        ),
    ),
    "missing_config": Scenario(
        an_empty_directory,
        ("ductile config check", CHECK, f"{CHECK} --json", "ductile plugin list --config demo"),
    ),
    "typo_in_key": Scenario(
        a_config("service:\n  log_levle: debug\n  tick_interval: 60s\nplugns: {}\n"),
        (CHECK, f"{CHECK} --json"),
    ),
    "tab": Scenario(a_config("service:\n\tlog_level: debug\n"), (CHECK,)),
    "duplicate_key": Scenario(
        a_config("service:\n  log_level: debug\nplugins: {}\nservice:\n  name: other\n"), (CHECK,)
    ),
    "missing_include": Scenario(a_config("include:\n  - tokens.yaml\n  - more/\n"), (CHECK,)),
    "bad_duration": Scenario(
        a_config(
            "service:\n  tick_interval: 5 minutes\n  dedupe_ttl: 60\nplugins:\n  echo:\n"
            "    schedules:\n      - every: often\n"
        ),
        (CHECK,),
    ),
    "unset_variable": Scenario(
        a_config(
            "service:\n  name: ${SERVICE_NAME}\n  log_level: ${LEVEL:-info}\nplugins:\n  echo:\n"
            "    config:\n      url: https://${HOST}/${PATH_PREFIX}\n"
        ),
        (CHECK,),
    ),
    "wrong_type": Scenario(
        a_config(
            "service:\n  max_workers: many\n  strict_mode: yes\n  log_level: loud\nplugins:\n  - echo\n"
            "routes: {}\n"
        ),
        (CHECK,),
    ),
    "unknown_plugin": Scenario(
        a_config(
            "plugins:\n  echo: {}\nroutes:\n  - from: echo\n    event_type: echo.said\n    to: ecko\n"
            "pipelines:\n  - name: p\n    on: x\n    steps:\n      - uses: other\n"
        ),
        (CHECK,),
    ),
    "bad_steps": Scenario(
        a_config(
            "plugins:\n  echo: {}\npipelines:\n  - name: p\n    on: x\n    steps:\n      - uses: echo\n"
            "        if:\n          all:\n            - {path: paylod.size, op: gt, value: 5}\n"
            "            - {path: payload.size, op: gt, value: [5]}\n"
            "            - {path: payload.name, op: regex, value: 'order-('}\n"
            "        with:\n          text: 'Dear {payload.name'\n          meta: {kind: '{event.type}'}\n"
            "        baggage:\n          customer.id: '{payload.id}'\n          ductile_plugin: payload.id\n"
        ),
        (CHECK,),
    ),
    "unknown_plugin_command": Scenario(
        a_config(
            "plugins:\n  echo: {}\nroutes:\n  - from: echo\n    event_type: echo.said\n    to: echo.shout\n"
        ),
        (CHECK,),
    ),
    "unknown_name": Scenario(
        a_starter(),
        (
            "ductile plugin show ecko --config demo",
            "ductile plugin check ./nowhere --config demo",
            "ductile config get service.log_levle --config demo",
            "ductile config get nonsense --config demo --json",
            "ductile config show plugins.nobody --config demo",
            "ductile config set service.log_level loud --config demo",
            "ductile config set service.log_levle info --config demo",
        ),
    ),
    "tampered_tokens": Scenario(
        a_starter(("tokens.yaml", "name: admin", "name: intruder")),
        (
            CHECK,
            f"{CHECK} --json",
            "ductile config lock --config demo --dry-run",
            "ductile config lock --config demo",
            CHECK,
        ),
    ),
    "tampered_plugin": Scenario(
        a_starter(("plugins/echo/run.py", "PROTOCOL = 2", "PROTOCOL = 2  # and more")), (CHECK,)
    ),
    "tampered_scopes": Scenario(a_starter(("scopes/admin.json", '"*"', '"jobs:ro"')), (CHECK,)),
    "never_sealed": Scenario(a_config("plugins: {echo: {}}\n"), (CHECK,)),
    "refused_plugins": Scenario(
        refused_plugins,
        (
            CHECK,
            f"{CHECK} --json",
            "ductile plugin list --config demo",
            "ductile plugin show gone --config demo",
            "ductile plugin check --config demo",
            "ductile plugin check demo/plugins/wrong",
        ),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_output_is_the_golden_one(name: str, tmp_path: Path) -> None:
    """Errors name the fault, its location, the expected value and a hint; the exit status gives the kind."""
    scenario = SCENARIOS[name]
    scenario.arrange(tmp_path)
    terminal = Terminal(directory=tmp_path)
    output = "\n".join(terminal.transcript(line) for line in scenario.lines)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(output)
    assert output == golden.read_text()


def test_no_transcript_is_left_over() -> None:
    """A golden file without a scenario would look like a test."""
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCENARIOS)
