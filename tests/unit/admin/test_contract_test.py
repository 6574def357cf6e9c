"""`plugin test` finds what breaks the protocol, and nothing else."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders.plugins import a_manifest, a_plugin
from ductile.admin.plugin_dev.contract_test import (
    CheckVerdict,
    ContractCheck,
    ContractReport,
    ContractTestOptions,
    check_contract,
)
from ductile.admin.plugins import check_plugins
from ductile.errors import NotFoundError

#: Keeps the protocol in every respect; tests change a line of it.
GOOD = """\
#!/bin/sh
request=$(cat)
case $request in *'"protocol":2'*) ;; *) exit 78 ;; esac
case $DUCTILE_COMMAND in
poll|handle|health) echo '{"status": "ok", "result": "done"}' ;;
*) echo '{"status": "error", "error": "no such command", "retry": false}' ;;
esac
"""
ANSWER = """echo '{"status": "ok", "result": "done"}' ;;"""


def check(directory: Path, script: str, wishes: ContractTestOptions | None = None) -> ContractReport:
    plugin = a_plugin(directory, "it", script=script)
    return asyncio.run(
        check_contract(
            None,
            {"PATH": os.environ["PATH"]},
            str(plugin),
            wishes or ContractTestOptions(timeout=timedelta(seconds=20)),
            now=lambda: datetime.now(UTC),
        )
    )


def faults(report: ContractReport, verdict: CheckVerdict = CheckVerdict.FAILED) -> set[ContractCheck]:
    return {finding.check for finding in report.results if finding.verdict is verdict}


def test_a_good_plugin_passes_every_check(tmp_path: Path) -> None:
    """Each check once, those of commands for each command."""
    report = check(tmp_path, GOOD)
    assert report.passed
    assert [finding.verdict for finding in report.results] == [CheckVerdict.PASSED] * 11
    assert {finding.check for finding in report.results} == set(ContractCheck)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("echo hello ;;", {ContractCheck.ANSWERS}),
        (f"echo starting; {ANSWER}", {ContractCheck.ANSWERS}),
        (ANSWER.replace(";;", "; echo '{}' ;;"), {ContractCheck.ANSWERS}),
        ("exit 1 ;;", {ContractCheck.ANSWERS}),
        ("kill -9 $$ ;;", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "ok"}' ;;""", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "ok", "result": NaN}' ;;""", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "error", "error": "no"}' ;;""", set()),
        (f"{ANSWER[:-2]}; exit 3 ;;", set()),
    ],
)
def test_these_responses_count_as_an_answer(tmp_path: Path, answer: str, found: set[ContractCheck]) -> None:
    """One object and nothing beside it; an error is an answer, and ok wins over the exit status."""
    assert faults(check(tmp_path, GOOD.replace(ANSWER, answer))) == found


def test_an_answer_has_to_come_in_time(tmp_path: Path) -> None:
    script = GOOD.replace(ANSWER, f"sleep 100; {ANSWER}")
    report = check(
        tmp_path, script, ContractTestOptions(timeout=timedelta(milliseconds=200), command="health")
    )
    assert faults(report) == {ContractCheck.ANSWERS}
    assert "deadline" in next(item.message for item in report.results if item.check is ContractCheck.ANSWERS)


def test_exit_78_is_worth_a_look(tmp_path: Path) -> None:
    """It is how a plugin says that its configuration is wrong, which it may be here."""
    report = check(tmp_path, GOOD.replace(ANSWER, "echo no key >&2; exit 78 ;;"))
    assert report.passed
    assert faults(report, CheckVerdict.WARNED) == {ContractCheck.ANSWERS}
    assert any(finding.message == "exits with 78: no key" for finding in report.results)


def test_a_command_that_cannot_be_repeated_is_pointed_out(tmp_path: Path) -> None:
    """Jobs run at least once."""
    mark = tmp_path / "mark"
    once = f"""if mkdir {mark} 2>/dev/null; then {ANSWER[:-2]}; else exit 1; fi ;;"""
    report = check(tmp_path, GOOD.replace(ANSWER, once), ContractTestOptions(command="poll"))
    assert ContractCheck.REPEATS in faults(report, CheckVerdict.WARNED)


def test_fields_that_are_not_known_yet_are_to_be_ignored(tmp_path: Path) -> None:
    """Requests may grow."""
    strict = "case $request in *from_a_later_version*) exit 1 ;; esac\n"
    script = GOOD.replace("case $DUCTILE_COMMAND", f"{strict}case $DUCTILE_COMMAND")
    assert faults(check(tmp_path, script)) == {ContractCheck.UNKNOWN_FIELDS}


@pytest.mark.parametrize(("other", "seconds"), [("exit 1 ;;", 20), (ANSWER, 20), ("exec sleep 100 ;;", 2)])
def test_an_unknown_command_that_is_no_error_is_pointed_out(tmp_path: Path, other: str, seconds: int) -> None:
    """Neither a crash nor a success is good; Ductile never asks for one, so nothing breaks."""
    before = """echo '{"status": "error", "error": "no such command", "retry": false}' ;;"""
    wishes = ContractTestOptions(timeout=timedelta(seconds=seconds), command="health")
    report = check(tmp_path, GOOD.replace(before, other), wishes)
    assert report.passed
    assert faults(report, CheckVerdict.WARNED) == {ContractCheck.UNKNOWN_COMMAND}


def test_another_protocol_that_does_not_end_with_78_is_pointed_out(tmp_path: Path) -> None:
    """Required of the SDK and the templates; other plugins may do without it."""
    ignoring = GOOD.replace("*) exit 78 ;;", "*) ;;")
    for directory, script in (("a", GOOD.replace("exit 78", "exit 1")), ("b", ignoring)):
        report = check(tmp_path / directory, script)
        assert report.passed
        assert faults(report, CheckVerdict.WARNED) == {ContractCheck.WRONG_PROTOCOL}


def test_processes_that_are_left_behind_are_pointed_out(tmp_path: Path) -> None:
    """They are ended with the job."""
    script = GOOD.replace(ANSWER, f"sleep 100 & {ANSWER}")
    report = check(tmp_path, script, ContractTestOptions(command="health"))
    assert report.passed
    assert faults(report, CheckVerdict.WARNED) == {ContractCheck.ANSWERS}


def test_a_plugin_that_is_refused_is_not_run(tmp_path: Path) -> None:
    """Trust comes first."""
    plugin = a_plugin(tmp_path, "it", script=f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    plugin.chmod(0o777)
    report = asyncio.run(
        check_contract(None, {}, str(plugin), ContractTestOptions(), now=lambda: datetime.now(UTC))
    )
    assert faults(report) == set(ContractCheck) & {ContractCheck.MANIFEST}
    assert not (tmp_path / "ran").exists()


def test_samples_settings_and_payloads_reach_the_plugin(tmp_path: Path) -> None:
    """A payload is made from the schema unless one is given; state is empty."""
    manifest = a_manifest("it").replace(
        "commands: [poll, handle, health]",
        "commands: {go: {input_schema: {type: object, properties: {size: {type: integer, minimum: 7}}}}}",
    )
    seen = tmp_path / "seen"
    plugin = a_plugin(tmp_path, "it", manifest=manifest, script=f"#!/bin/sh\ncat >>{seen}; echo >>{seen}\n")

    def requests(wishes: ContractTestOptions) -> str:
        seen.write_text("")
        asyncio.run(check_contract(None, {}, str(plugin), wishes, now=lambda: datetime.now(UTC)))
        return seen.read_text().splitlines()[0]

    assert '"payload":{"size":7}' in requests(ContractTestOptions())
    assert '"state":{}' in requests(ContractTestOptions())
    given = requests(ContractTestOptions(payload={"size": 1}, config={"a": 2}))
    assert '"payload":{"size":1}' in given
    assert '"config":{"a":2}' in given


def test_the_same_request_is_sent_twice(tmp_path: Path) -> None:
    """Byte for byte, as a job that is run again is given it."""
    seen = tmp_path / "seen"
    check(tmp_path, f"#!/bin/sh\ncat >>{seen}; echo >>{seen}\n", ContractTestOptions(command="handle"))
    first, second, *_ = seen.read_text().splitlines()
    assert first == second


def test_a_command_that_is_not_declared_cannot_be_tested(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="it has no command dance"):
        check(tmp_path, GOOD, ContractTestOptions(command="dance"))


@pytest.mark.parametrize(
    "script", ["#!/nowhere/at/all\n", "#!/bin/sh\ncat >/dev/null\n"], ids=["no interpreter", "no answer"]
)
def test_a_plugin_that_does_not_answer_passes_nothing_but_its_manifest(script: str, tmp_path: Path) -> None:
    """What could not be tried is skipped: a check that proved nothing is not passed."""
    report = check(tmp_path, script)
    assert not report.passed
    assert faults(report, CheckVerdict.PASSED) == {ContractCheck.MANIFEST}
    assert faults(report, CheckVerdict.SKIPPED) == {
        ContractCheck.REPEATS,
        ContractCheck.UNKNOWN_FIELDS,
        ContractCheck.END_OF_INPUT,
    }
    assert not any("None" in finding.message for finding in report.results)


def test_a_first_line_that_names_nothing_is_warned_about(tmp_path: Path) -> None:
    """Before its first job fails."""
    plugin = a_plugin(tmp_path, "it", script="#!/nowhere/at/all\n")
    (warning,) = check_plugins(None, {}, str(plugin)).warnings
    assert "names /nowhere/at/all, which does not exist here" in warning.message
    (plugin / "run.sh").write_text(GOOD)
    assert check_plugins(None, {}, str(plugin)).warnings == ()
