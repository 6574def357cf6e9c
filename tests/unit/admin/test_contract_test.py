"""`plugin test` finds violations of the protocol, and nothing else."""

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

#: A script that keeps the protocol in every respect; tests change one line of it.
GOOD_SCRIPT = """\
#!/bin/sh
request=$(cat)
case $request in *'"protocol":2'*) ;; *) exit 78 ;; esac
case $DUCTILE_COMMAND in
poll|handle|health) echo '{"status": "ok", "result": "done"}' ;;
*) echo '{"status": "error", "error": "no such command", "retry": false}' ;;
esac
"""
RESPONSE = """echo '{"status": "ok", "result": "done"}' ;;"""


def check(directory: Path, script: str, options: ContractTestOptions | None = None) -> ContractReport:
    plugin = a_plugin(directory, "it", script=script)
    return asyncio.run(
        check_contract(
            None,
            {"PATH": os.environ["PATH"]},
            str(plugin),
            options or ContractTestOptions(timeout=timedelta(seconds=20)),
            now=lambda: datetime.now(UTC),
        )
    )


def checks_with(report: ContractReport, verdict: CheckVerdict = CheckVerdict.FAILED) -> set[ContractCheck]:
    return {finding.check for finding in report.results if finding.verdict is verdict}


def test_a_good_plugin_passes_every_check(tmp_path: Path) -> None:
    """Each check runs once, and the checks of commands run once per command."""
    report = check(tmp_path, GOOD_SCRIPT)
    assert report.passed
    assert [finding.verdict for finding in report.results] == [CheckVerdict.PASSED] * 11
    assert {finding.check for finding in report.results} == set(ContractCheck)


@pytest.mark.parametrize(
    ("response", "failed_checks"),
    [
        ("echo hello ;;", {ContractCheck.ANSWERS}),
        (f"echo starting; {RESPONSE}", {ContractCheck.ANSWERS}),
        (RESPONSE.replace(";;", "; echo '{}' ;;"), {ContractCheck.ANSWERS}),
        ("exit 1 ;;", {ContractCheck.ANSWERS}),
        ("kill -9 $$ ;;", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "ok"}' ;;""", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "ok", "result": NaN}' ;;""", {ContractCheck.ANSWERS}),
        ("""echo '{"status": "error", "error": "no"}' ;;""", set()),
        (f"{RESPONSE[:-2]}; exit 3 ;;", set()),
    ],
)
def test_these_responses_count_as_an_answer(
    tmp_path: Path, response: str, failed_checks: set[ContractCheck]
) -> None:
    """A response is one object and nothing else. An error is a response; ok counts more than the exit
    status.
    """
    assert checks_with(check(tmp_path, GOOD_SCRIPT.replace(RESPONSE, response))) == failed_checks


def test_an_answer_has_to_come_in_time(tmp_path: Path) -> None:
    script = GOOD_SCRIPT.replace(RESPONSE, f"sleep 100; {RESPONSE}")
    report = check(
        tmp_path, script, ContractTestOptions(timeout=timedelta(milliseconds=200), command="health")
    )
    assert checks_with(report) == {ContractCheck.ANSWERS}
    assert "deadline" in next(item.message for item in report.results if item.check is ContractCheck.ANSWERS)


def test_exit_78_is_worth_a_look(tmp_path: Path) -> None:
    """Exit status 78 reports a wrong configuration, and the test may run with one."""
    report = check(tmp_path, GOOD_SCRIPT.replace(RESPONSE, "echo no key >&2; exit 78 ;;"))
    assert report.passed
    assert checks_with(report, CheckVerdict.WARNED) == {ContractCheck.ANSWERS}
    assert any(finding.message == "exits with 78: no key" for finding in report.results)


def test_a_command_that_cannot_be_repeated_is_pointed_out(tmp_path: Path) -> None:
    """Jobs run at least once, so a command has to bear a repetition."""
    mark = tmp_path / "mark"
    once = f"""if mkdir {mark} 2>/dev/null; then {RESPONSE[:-2]}; else exit 1; fi ;;"""
    report = check(tmp_path, GOOD_SCRIPT.replace(RESPONSE, once), ContractTestOptions(command="poll"))
    assert ContractCheck.REPEATS in checks_with(report, CheckVerdict.WARNED)


def test_fields_that_are_not_known_yet_are_to_be_ignored(tmp_path: Path) -> None:
    """Requests may get new fields."""
    strict = "case $request in *from_a_later_version*) exit 1 ;; esac\n"
    script = GOOD_SCRIPT.replace("case $DUCTILE_COMMAND", f"{strict}case $DUCTILE_COMMAND")
    assert checks_with(check(tmp_path, script)) == {ContractCheck.UNKNOWN_FIELDS}


@pytest.mark.parametrize(
    ("reaction", "seconds"), [("exit 1 ;;", 20), (RESPONSE, 20), ("exec sleep 100 ;;", 5)]
)
def test_an_unknown_command_that_is_no_error_is_pointed_out(
    tmp_path: Path, reaction: str, seconds: int
) -> None:
    """Neither a crash nor a success is right. Ductile never sends an unknown command, so this is a
    warning.
    """
    error_line = """echo '{"status": "error", "error": "no such command", "retry": false}' ;;"""
    options = ContractTestOptions(timeout=timedelta(seconds=seconds), command="health")
    report = check(tmp_path, GOOD_SCRIPT.replace(error_line, reaction), options)
    assert report.passed
    assert checks_with(report, CheckVerdict.WARNED) == {ContractCheck.UNKNOWN_COMMAND}


def test_another_protocol_that_does_not_end_with_78_is_pointed_out(tmp_path: Path) -> None:
    """The SDK and the templates have to refuse another protocol; other plugins may omit the check."""
    ignoring_script = GOOD_SCRIPT.replace("*) exit 78 ;;", "*) ;;")
    for directory, script in (("a", GOOD_SCRIPT.replace("exit 78", "exit 1")), ("b", ignoring_script)):
        report = check(tmp_path / directory, script)
        assert report.passed
        assert checks_with(report, CheckVerdict.WARNED) == {ContractCheck.WRONG_PROTOCOL}


def test_processes_that_are_left_behind_are_pointed_out(tmp_path: Path) -> None:
    """Leftover processes are killed when the job ends."""
    script = GOOD_SCRIPT.replace(RESPONSE, f"sleep 100 & {RESPONSE}")
    report = check(tmp_path, script, ContractTestOptions(command="health"))
    assert report.passed
    assert checks_with(report, CheckVerdict.WARNED) == {ContractCheck.ANSWERS}


def test_a_plugin_that_is_refused_is_not_run(tmp_path: Path) -> None:
    """Trust is checked before a plugin runs."""
    plugin = a_plugin(tmp_path, "it", script=f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    plugin.chmod(0o777)
    report = asyncio.run(
        check_contract(None, {}, str(plugin), ContractTestOptions(), now=lambda: datetime.now(UTC))
    )
    assert checks_with(report) == set(ContractCheck) & {ContractCheck.MANIFEST}
    assert not (tmp_path / "ran").exists()


def test_samples_settings_and_payloads_reach_the_plugin(tmp_path: Path) -> None:
    """The payload is generated from the schema if none is given; the state is empty."""
    manifest = a_manifest("it").replace(
        "commands: [poll, handle, health]",
        "commands: {go: {input_schema: {type: object, properties: {size: {type: integer, minimum: 7}}}}}",
    )
    request_file = tmp_path / "seen"
    plugin = a_plugin(
        tmp_path, "it", manifest=manifest, script=f"#!/bin/sh\ncat >>{request_file}; echo >>{request_file}\n"
    )

    def first_request(options: ContractTestOptions) -> str:
        request_file.write_text("")
        asyncio.run(check_contract(None, {}, str(plugin), options, now=lambda: datetime.now(UTC)))
        return request_file.read_text().splitlines()[0]

    assert '"payload":{"size":7}' in first_request(ContractTestOptions())
    assert '"state":{}' in first_request(ContractTestOptions())
    request = first_request(ContractTestOptions(payload={"size": 1}, config={"a": 2}))
    assert '"payload":{"size":1}' in request
    assert '"config":{"a":2}' in request


def test_the_same_request_is_sent_twice(tmp_path: Path) -> None:
    """Both requests are equal byte for byte, as for a job that runs again."""
    request_file = tmp_path / "seen"
    check(
        tmp_path,
        f"#!/bin/sh\ncat >>{request_file}; echo >>{request_file}\n",
        ContractTestOptions(command="handle"),
    )
    first, second, *_ = request_file.read_text().splitlines()
    assert first == second


def test_a_command_that_is_not_declared_cannot_be_tested(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="it has no command dance"):
        check(tmp_path, GOOD_SCRIPT, ContractTestOptions(command="dance"))


@pytest.mark.parametrize(
    "script", ["#!/nowhere/at/all\n", "#!/bin/sh\ncat >/dev/null\n"], ids=["no interpreter", "no answer"]
)
def test_a_plugin_that_does_not_answer_passes_nothing_but_its_manifest(script: str, tmp_path: Path) -> None:
    """A check that could not run is skipped, not passed."""
    report = check(tmp_path, script)
    assert not report.passed
    assert checks_with(report, CheckVerdict.PASSED) == {ContractCheck.MANIFEST}
    assert checks_with(report, CheckVerdict.SKIPPED) == {
        ContractCheck.REPEATS,
        ContractCheck.UNKNOWN_FIELDS,
        ContractCheck.END_OF_INPUT,
    }
    assert not any("None" in finding.message for finding in report.results)


def test_a_first_line_that_names_nothing_is_warned_about(tmp_path: Path) -> None:
    """The warning comes before the first job fails."""
    plugin = a_plugin(tmp_path, "it", script="#!/nowhere/at/all\n")
    (warning,) = check_plugins(None, {}, str(plugin)).warnings
    assert "names /nowhere/at/all, which does not exist here" in warning.message
    (plugin / "run.sh").write_text(GOOD_SCRIPT)
    assert check_plugins(None, {}, str(plugin)).warnings == ()
