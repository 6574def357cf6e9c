"""Properties of every row of the table of commands."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from builders.daemons import BROKEN, Workspace, a_daemon, a_workspace
from ductile.cli.command_table import NOUNS, SHORT_FORMS
from ductile.cli.main import run
from ductile.cli.spec import Action

ACTIONS = {f"{noun.name} {action.name}": action for noun in NOUNS for action in noun.actions}
MUTATIONS = [
    words
    for words, action in ACTIONS.items()
    if any("--dry-run" in option.flags for option in action.options)
]
#: The import of each costs milliseconds, and help needs none of them.
HEAVY = (
    "asyncio",
    "argparse",
    "json",
    "msgspec",
    "ruamel",
    "yaml",
    "sqlite3",
    "socket",
    "difflib",
    "textual",
)
#: Omits the full text index, which is written in the background and stores its position in `store_meta`.
TABLES = """
SELECT name FROM pragma_table_list
WHERE schema = 'main' AND type = 'table' AND name <> 'store_meta'
ORDER BY name
"""
PLUGINS = """\
  broken:
    retry: {max_attempts: 1}
    circuit_breaker: {threshold: 1}
    schedules: [{id: hourly, every: 1h}]
  patient: {retry: {backoff_base: 1h}}
pipelines:
  - {name: order, on: order.placed, steps: [{id: make, uses: echo}, {id: fail, uses: broken}]}
state_webhooks: {allow: [127.0.0.1]}
"""


def takes_many(action: Action) -> bool:
    return any(argument.variadic for argument in action.arguments)


def required_arguments(action: Action) -> list[str]:
    return ["x" for argument in action.arguments if argument.required]


@pytest.mark.parametrize("words", ACTIONS)
def test_mistakes_are_reported_in_json_as_well(words: str, tmp_path: Path) -> None:
    """The errors of all commands have one shape. The exit status is 2 for a mistake and 78 for a missing
    configuration.
    """
    for arguments, expected in (
        (["--nonsense"], {2}),
        (
            [*required_arguments(ACTIONS[words]), "and", "too", "many"],
            {2} if not takes_many(ACTIONS[words]) else {1, 78},
        ),
        ([*required_arguments(ACTIONS[words]), "--config", str(tmp_path / "nowhere")], {0, 1, 2, 78}),
    ):
        out, err = io.StringIO(), io.StringIO()
        dry_run = ["--dry-run"] if words in MUTATIONS and expected != {2} else []
        environ = {"HOME": str(tmp_path), "PATH": ""}
        status = run([*words.split(), *arguments, *dry_run, "--json"], environ, out, err)
        assert status in expected, out.getvalue()
        response = json.loads(out.getvalue())
        if status:
            error = response.get("error")
            assert error is None or set(error) == {"code", "message", "hint", "details"}
            assert error is not None or words == "system doctor"
        assert err.getvalue() == ""


def test_help_of_everything_loads_nothing_heavy() -> None:
    """Help takes under 100 ms. The time depends on the machine, the imported modules do not."""
    lines = [["--help"], *([noun.name, "--help"] for noun in NOUNS)]
    lines += [[*words.split(), "--help"] for words in ACTIONS]
    lines += [[form.name, "--help"] for form in SHORT_FORMS]
    program = (
        "import io, sys\n"
        "from ductile.cli.main import run\n"
        f"for line in {lines!r}:\n"
        "    out = io.StringIO()\n"
        "    assert run(line, {}, out, out) == 0 and out.getvalue().startswith('Usage: ductile'), line\n"
        f"print(sorted(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("noun", [noun.name for noun in NOUNS])
def test_a_slip_in_an_action_is_answered_with_what_was_meant(noun: str) -> None:
    """The hint names the right one for each action with a letter too many, and for a misspelt noun."""
    for line, expected in (
        *(((noun, f"{words.split()[1]}s"), f"{words}`?") for words in ACTIONS if words.split()[0] == noun),
        ((f"{noun}z", "--help"), f"{noun} "),
    ):
        out, err = io.StringIO(), io.StringIO()
        if " ".join(line) in ACTIONS or line == ("plugin", "states"):  # it is as near to `stats`
            continue
        assert run(line, {}, out, err) == 2
        assert f"did you mean `ductile {expected}" in err.getvalue()


def files_and_rows(workspace: Workspace) -> dict[str, object]:
    """Return every file of the configuration and every row of the store."""
    data = workspace.directory / "demo" / "data"
    contents: dict[str, object] = {
        str(path): path.read_bytes()
        for path in sorted(workspace.directory.rglob("*"))
        if path.is_file() and not path.is_relative_to(data)
    }
    with closing(sqlite3.connect(f"file:{data / 'state.db'}?mode=ro", uri=True)) as store:
        for (name,) in store.execute(TABLES).fetchall():
            contents[name] = store.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608 - the schema's names
    return contents


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """Every mutation has --dry-run. After all dry runs each file and each row is as before."""
    workspace = a_workspace(tmp_path, PLUGINS)
    for name in ("broken", "patient"):
        workspace.plugin(name, BROKEN)
    workspace.config.write_text(workspace.config.read_text() + "tokens: [{name: spare, key: literal}]\n")
    assert workspace.ductile("config", "lock").status == 0
    assert workspace.ductile("token", "create", "robot", "--scopes", "jobs:ro").status == 0
    archive = tmp_path / "saved.tar.gz"
    with a_daemon(workspace) as daemon:
        daemon.wait_for("breaker.changed")
        dead_job = workspace.json("run", "broken", status=1)["job_id"]
        waiting_job = workspace.json("run", "patient", "--retry", "--no-wait")["job_id"]
        daemon.wait_for("job.retrying", lambda line: line["job_id"] == waiting_job)
        assert workspace.ductile("system", "backup", str(archive)).status == 0
        lines = {
            "system start": None,  # refused while a daemon runs
            "system stop": [],
            "system reload": [],
            "system reset": ["broken"],
            "system sweep": [],
            "system backup": [str(tmp_path / "more.tar.gz")],
            "system restore": [str(archive), "--to", str(tmp_path / "back")],
            "system move-store": None,  # refused while a daemon runs
            "config lock": [],
            "config set": ["service.log_level", "info"],
            "config apply": [],
            "config rollback": ["--keep-env"],
            "config unset": ["service.log_level"],
            "config edit": None,  # needs an editor
            "config init": [str(tmp_path / "fresh")],
            "plugin run": ["echo"],
            "plugin exec": None,  # its options come before its command: see test_scripts.py
            "plugin new": ["fresh", "--dir", str(tmp_path)],
            "skill export": [str(tmp_path / "skill")],
            "plugin disable": ["patient"],
            "plugin enable": ["patient"],
            "plugin lock": [],
            "plugin add": ["fetch"],
            "plugin update": None,  # needs a plugin that was added: see test_plugin_add.py
            "plugin remove": ["patient"],
            "plugin authorize": None,  # needs a plugin that uses OAuth: see test_authorize.py
            "pipeline run": ["order"],
            "job cancel": [waiting_job],
            "job retry": [dead_job],
            "job rerun": [dead_job],
            "queue purge": ["--all"],
            "schedule pause": ["broken"],
            "schedule resume": ["broken"],
            "schedule run": ["broken"],
            "event send": ["order.placed"],
            "webhook send": None,  # needs an endpoint
            "webhook resend": None,  # needs a delivery
            "token create": ["fresh"],
            "token rotate": ["robot"],
            "token revoke": ["spare"],
        }
        assert set(lines) == set(MUTATIONS)
        before = files_and_rows(workspace)
        for words, arguments in lines.items():
            if arguments is not None:
                assert workspace.json(*words.split(), *arguments, "--dry-run")["dry_run"] is True
        assert files_and_rows(workspace) == before
        assert daemon.process.poll() is None


MISSPELT = (
    *("plugin run ecko", "plugin show ecko", "plugin check ecko", "plugin test ecko", "plugin lock ecko"),
    *(
        "plugin state ecko",
        "plugin facts ecko",
        "system logs ecko",
        "system breaker ecko",
        "system reset ecko",
    ),
    *("job list --plugin ecko", "queue list --plugin ecko", "queue purge ecko", "schedule list ecko"),
    *("schedule next ecko", "schedule history ecko", "schedule explain ecko", "schedule pause ecko"),
    *("schedule resume ecko", "pipeline show ordr", "pipeline run ordr", "pipeline check ordr"),
    *("pipeline graph ordr", "token revoke spar", "config get servce", "config set servce.name x"),
)


def test_a_slip_in_a_name_is_answered_with_what_was_meant(tmp_path: Path) -> None:
    """Every command that takes a name suggests the nearest one."""
    workspace = a_workspace(tmp_path, PLUGINS)
    for name in ("broken", "patient"):
        workspace.plugin(name, BROKEN)
    workspace.config.write_text(workspace.config.read_text() + "tokens: [{name: spare, key: literal}]\n")
    hints = ("did you mean echo?", "did you mean order?", "did you mean spare?", "did you mean service?")
    assert workspace.ductile("config", "lock").status == 0
    for words in MISSPELT:
        out, err = io.StringIO(), io.StringIO()
        status = run([*words.split(), "--config", str(workspace.config)], {"HOME": str(tmp_path)}, out, err)
        assert status in (1, 78), (words, err.getvalue())
        assert any(hint in err.getvalue() for hint in hints), (words, err.getvalue())


def test_a_schedule_that_no_daemon_has_entered_yet_is_not_called_unknown(tmp_path: Path) -> None:
    """The plugin is in the configuration, so the hint is to start the daemon."""
    workspace = a_workspace(tmp_path, PLUGINS)
    for name in ("broken", "patient"):
        workspace.plugin(name, BROKEN)
    result = workspace.ductile("schedule", "pause", "broken")
    assert result.status == 1
    assert "the schedules of broken are not in the store yet" in result.err
    assert "ductile system start" in result.err
