"""`plugin test`: checks that a plugin keeps the protocol.

Every command is run twice, with a payload that is made from its schema. Nothing is stored: its state is empty
and its events are dropped. Its side effects are real.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.plugin_dev.run_once import PluginUnderTest, RunOnceResult, find_plugin_under_test, run_once
from ductile.admin.plugin_dev.sample_payload import sample_payload
from ductile.config.snapshot import RefusedPlugin
from ductile.core.jobs.model import OutputFormat
from ductile.core.json import JsonObject
from ductile.core.scripts import EXIT_CONFIG
from ductile.errors import NotFoundError
from ductile.protocol.manifest.model import Command, CommandType
from ductile.protocol.plugin_messages import (
    PROTOCOL_VERSION,
    PluginRequest,
    RequestEvent,
    carries_event,
    encode_request,
)
from ductile.runner.interpret import ExecutionWarning
from ductile.runner.process.spawn import SpawnRunner
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from ductile.runner.port import Runner

_JOB_ID = "00000000-0000-7000-8000-000000000001"
_EVENT_ID = "00000000-0000-7000-8000-000000000002"
_UNKNOWN_COMMAND = "no_such_command"
#: The time for a plugin whose stdin is empty: it has nothing to wait for.
_END_OF_INPUT_TIMEOUT = timedelta(seconds=10)
_MAX_SHOWN = 200


class CheckVerdict(StrEnum):
    PASSED = "passed"
    #: Allowed by the protocol, but likely a mistake.
    WARNED = "warned"
    FAILED = "failed"
    #: Not checked, because the plugin does not respond at all.
    SKIPPED = "skipped"


#: Kinds of results in which the plugin responded.
_RESPONDED = ("ok", "error", "config")


class ContractCheck(StrEnum):
    """The checks; documented in `docs/how-to/test-a-plugin.md`."""

    MANIFEST = "manifest"
    ANSWERS = "answers"
    REPEATS = "repeats"
    UNKNOWN_FIELDS = "unknown_fields"
    UNKNOWN_COMMAND = "unknown_command"
    WRONG_PROTOCOL = "wrong_protocol"
    END_OF_INPUT = "end_of_input"


class CheckResult(Value):
    check: ContractCheck
    verdict: CheckVerdict
    message: str
    command: str | None = None
    hint: str | None = None


class ContractReport(Value):
    name: str
    directory: Path
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return all(result.verdict is not CheckVerdict.FAILED for result in self.results)


class ContractTestOptions(Value):
    """Values that the author gives instead of the defaults and the sample payload."""

    command: str | None = None
    payload: JsonObject | None = None
    config: JsonObject | None = None
    timeout: timedelta | None = None


async def check_contract(
    config_path: str | None,
    environ: Mapping[str, str],
    target: str,
    options: ContractTestOptions,
    *,
    now: Callable[[], datetime],
) -> ContractReport:
    """Run every check on a configured plugin, or on one in any directory."""
    tested = find_plugin_under_test(config_path, environ, target)
    if isinstance(tested, RefusedPlugin):
        refused = CheckResult(
            check=ContractCheck.MANIFEST, verdict=CheckVerdict.FAILED, message=tested.reason, hint=tested.hint
        )
        return ContractReport(name=tested.name, directory=tested.directory, results=(refused,))
    if options.config is not None:
        tested = replace(tested, config=options.config)
    runner = SpawnRunner()
    try:
        run = _ContractRun(runner=runner, tested=tested, environ=environ, options=options, now=now)
        results = [result async for result in run.results()]
    finally:
        await runner.close()
    return ContractReport(name=tested.name, directory=tested.plugin.directory, results=tuple(results))


class _ContractRun(Value):
    """Runs the checks of one plugin one after the other."""

    runner: Runner
    tested: PluginUnderTest
    environ: Mapping[str, str]
    options: ContractTestOptions
    now: Callable[[], datetime]

    async def results(self) -> AsyncIterator[CheckResult]:
        declared = self.tested.plugin.manifest.commands
        requested = self.options.command
        if requested is not None and requested not in declared:
            message = f"{self.tested.name} has no command {requested}"
            raise NotFoundError(message, hint=f"there are {', '.join(declared)}")
        commands = [command for name, command in declared.items() if requested in (None, name)]
        if (script := self.tested.plugin.script) is not None and script.output is not OutputFormat.PROTOCOL:
            yield _passed(ContractCheck.MANIFEST, f"trusted; runs {_shorten(shlex.join(script.argv))}")
            # The commands of a script all do the same.
            name, request = commands[0].name, self._request(commands[0])
            first = await self._run(request)
            yield check_script(name, first)
            yield check_script_repetition(name, first, await self._run(request))
            return
        yield _passed(ContractCheck.MANIFEST, f"valid and trusted, {len(declared)} commands")
        results: dict[str, RunOnceResult] = {}
        for command in commands:
            request = self._request(command)
            results[command.name] = await self._run(request)
            yield check_answer(command.name, results[command.name])
            yield check_repetition(command, results[command.name], await self._run(request))
        # The other checks are not about a command: they use the one with the fewest side effects.
        harmless_command = min(
            commands, key=lambda command: (command.name != "health", command.type is not CommandType.READ)
        )
        body: JsonObject = json.loads(self._request(harmless_command))
        extended: JsonObject = {**body, "from_a_later_version": {"nested": [1, None]}}
        if isinstance(event := body.get("event"), dict):
            extended["event"] = {**event, "from_a_later_version": True}
        with_unknown_fields = await self._run(_encode(extended))
        yield check_unknown_fields(harmless_command.name, results[harmless_command.name], with_unknown_fields)
        yield check_unknown_command(await self._run(_encode({**body, "command": _UNKNOWN_COMMAND})))
        yield check_wrong_protocol(await self._run(_encode({**body, "protocol": PROTOCOL_VERSION + 1})))
        yield check_end_of_input(await self._run(b"", time_limit=_END_OF_INPUT_TIMEOUT), results.values())

    async def _run(self, request: bytes, time_limit: timedelta | None = None) -> RunOnceResult:
        time_limit = time_limit or self.options.timeout
        return await run_once(self.runner, self.tested, request, self.environ, time_limit=time_limit)

    def _request(self, command: Command) -> bytes:
        payload = self.options.payload
        if payload is None:
            payload = sample_payload(command.input_schema)
        now = self.now()
        event = RequestEvent(
            type="plugin.test", payload=payload, source="cli", timestamp=now, event_id=_EVENT_ID
        )
        timeout = self.options.timeout or self.tested.timeout_for(command.name)
        return encode_request(
            PluginRequest(
                job_id=_JOB_ID,
                command=command.name,
                instance=self.tested.name,
                config=self.tested.config,
                state={},
                context={"ductile_plugin": self.tested.name},
                # Enough for both runs: the second request has the same bytes as the first.
                deadline_at=now + 2 * timeout,
                payload=payload or None,
                event=event if carries_event(command.name, has_payload=bool(payload)) else None,
            )
        )


def _encode(body: JsonObject) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


# --------------------------------------------------------------------------------------------- checks


def check_answer(command: str, result: RunOnceResult) -> CheckResult:
    """Expect one JSON object on stdout, in time; one that reports an error counts, too."""
    if result.kind == "ok" and ExecutionWarning.LEFTOVERS in result.interpretation.warnings:
        message = "answers, but leaves processes behind"
        return _warned(ContractCheck.ANSWERS, message, command, hint="wait for what you start")
    match result.kind:
        case "ok":
            return _passed(ContractCheck.ANSWERS, "ok", command)
        case "error":
            return _passed(ContractCheck.ANSWERS, f"error: {_short_error(result)}", command)
        case "config":
            hint = "give it a usable config: test it by its configured name, or with --settings"
            lines = (result.interpretation.outcome.evidence.stderr or "").strip().splitlines()
            reason = _shorten(lines[-1]) if lines else "it does not say why"
            return _warned(ContractCheck.ANSWERS, f"exits with {EXIT_CONFIG}: {reason}", command, hint=hint)
        case "timeout":
            hint = "give it more time with --timeout, or make it faster"
            return _failed(ContractCheck.ANSWERS, _short_error(result), command, hint=hint)
        case _:
            hint = "see what it prints: ductile plugin run PLUGIN --request FILE"
            return _failed(ContractCheck.ANSWERS, _short_error(result), command, hint=hint)


def check_script(command: str, result: RunOnceResult) -> CheckResult:
    """Expect the exit status 0 of a script, within its time."""
    if result.kind != "ok":
        hint = "it reads its payload in DUCTILE_PAYLOAD or on stdin: give it one with --payload"
        if result.kind == "timeout":
            hint = "give it more time with --timeout, or `timeout` in its configuration"
        return _failed(ContractCheck.ANSWERS, _short_error(result), command, hint=hint)
    if ExecutionWarning.LEFTOVERS in result.interpretation.warnings:
        message = "succeeds, but leaves processes behind"
        return _warned(ContractCheck.ANSWERS, message, command, hint="wait for what you start")
    lines = (result.interpretation.outcome.evidence.stdout or "").strip().splitlines()
    printed = f"exit status 0; prints {_shorten(lines[-1])}" if lines else "exit status 0; prints nothing"
    return _passed(ContractCheck.ANSWERS, printed, command)


def check_script_repetition(command: str, first: RunOnceResult, again: RunOnceResult) -> CheckResult:
    if first.kind != "ok":
        return _skipped(ContractCheck.REPEATS, command, "it does not succeed: see `answers`")
    if again.kind == "ok":
        return _passed(ContractCheck.REPEATS, "exit status 0 again", command)
    hint = "a job may be run twice: make the second run succeed too"
    return _warned(ContractCheck.REPEATS, f"first 0, then {_short_error(again)}", command, hint=hint)


def check_repetition(command: Command, first: RunOnceResult, again: RunOnceResult) -> CheckResult:
    """Expect the same kind of result for the same request: a job may run more than once."""
    if first.kind not in _RESPONDED:
        return _skipped(ContractCheck.REPEATS, command.name)
    if first.kind == again.kind:
        return _passed(ContractCheck.REPEATS, f"{again.kind} again", command.name)
    message = f"first {first.kind}, then {again.kind}: {_short_error(again)}".removesuffix(": ")
    hint = "a job may be run twice: make the second run succeed too, or record in the state what is done"
    return _warned(ContractCheck.REPEATS, message, command.name, hint=hint)


def check_unknown_fields(command: str, first: RunOnceResult, extended: RunOnceResult) -> CheckResult:
    if first.kind not in _RESPONDED:
        return _skipped(ContractCheck.UNKNOWN_FIELDS, command)
    if first.kind == extended.kind:
        return _passed(ContractCheck.UNKNOWN_FIELDS, "ignored", command)
    message = f"{first.kind} without them, {extended.kind} with them: {_short_error(extended)}".removesuffix(
        ": "
    )
    hint = "later versions may add fields to a request: ignore those you do not know"
    return _failed(ContractCheck.UNKNOWN_FIELDS, message, command, hint=hint)


def check_unknown_command(result: RunOnceResult) -> CheckResult:
    """Expect an error. Anything else is only a warning: Ductile sends declared commands only."""
    hint = 'answer {"status": "error", "error": "...", "retry": false}'
    match result.kind:
        case "error":
            return _passed(ContractCheck.UNKNOWN_COMMAND, f"error: {_short_error(result)}")
        case "ok":
            message = "a command that it does not have is answered with ok"
            return _warned(ContractCheck.UNKNOWN_COMMAND, message, hint=hint)
        case _:
            return _warned(ContractCheck.UNKNOWN_COMMAND, _short_error(result), hint=hint)


def check_wrong_protocol(result: RunOnceResult) -> CheckResult:
    exit_code = result.interpretation.outcome.evidence.exit_code
    if result.kind in ("config", "error") and exit_code == EXIT_CONFIG:
        return _passed(ContractCheck.WRONG_PROTOCOL, f"exits with {EXIT_CONFIG}")
    ended = f"exit status {exit_code}"
    if exit_code is None:
        killed = result.interpretation.outcome.evidence.signal is not None
        ended = f"without an exit status: it {'was killed' if killed else 'could not be started'}"
    message = f"a request of protocol {PROTOCOL_VERSION + 1} ends with {result.kind}, {ended}"
    hint = f"compare `protocol` with {PROTOCOL_VERSION} and exit with {EXIT_CONFIG} if it differs"
    return _warned(ContractCheck.WRONG_PROTOCOL, message, hint=hint)


def check_end_of_input(result: RunOnceResult, first: Iterable[RunOnceResult]) -> CheckResult:
    if all(result.kind not in _RESPONDED for result in first):
        return _skipped(ContractCheck.END_OF_INPUT)
    if result.kind != "timeout":
        return _passed(ContractCheck.END_OF_INPUT, "ends")
    hint = "read stdin to its end, and no further"
    return _failed(ContractCheck.END_OF_INPUT, "keeps running although stdin is empty and closed", hint=hint)


def _short_error(result: RunOnceResult) -> str:
    return _shorten(result.error or "")


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _passed(check: ContractCheck, message: str, command: str | None = None) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.PASSED, message=message, command=command)


def _skipped(
    check: ContractCheck, command: str | None = None, message: str = "it does not answer: see `answers`"
) -> CheckResult:
    return CheckResult(
        check=check,
        verdict=CheckVerdict.SKIPPED,
        message=message,
        command=command,
    )


def _warned(check: ContractCheck, message: str, command: str | None = None, *, hint: str) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.WARNED, message=message, command=command, hint=hint)


def _failed(check: ContractCheck, message: str, command: str | None = None, *, hint: str) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.FAILED, message=message, command=command, hint=hint)
