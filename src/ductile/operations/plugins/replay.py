"""Replaying recorded requests against a changed plugin or configuration: which answers differ.

The processes are started as for a job, with the same limits. Nothing is written to the store: no state, no
jobs, no events, no state webhooks. Each request has a copy of the plugin's present state, and the plugin an
empty directory for its files.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from msgspec import Meta

from ductile.config.snapshot import InstalledPlugin, PluginInstance, RefusedPlugin, Snapshot
from ductile.core.jobs.model import Completed, Outcome
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonValue
from ductile.core.json_differences import Path as JsonPath
from ductile.core.json_differences import parse_pattern
from ductile.engine.launches import LaunchHost, PreparedLaunch, prepare_launch
from ductile.errors import DeniedError, NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import OnePlugin, commands_of, known_command, runnable_plugin
from ductile.operations.plugins.recordings import LostRecording, Recording, find_recordings
from ductile.operations.plugins.replay_verdict import (
    HARMLESS,
    AnswerDifference,
    ReplayVerdict,
    compare_responses,
    describe_difference,
    judge_responses,
)
from ductile.operations.request import refused
from ductile.operations.response import Id, Response, Timestamp, milliseconds, timestamp
from ductile.plugins.discovery import load_directory
from ductile.protocol.manifest.model import MANIFEST_FILE, CommandType
from ductile.runner.interpret import interpret, mask_state_secrets
from ductile.runner.port import CouldNotStart, ForkServerLost
from ductile.runner.process.spawn import SpawnRunner
from ductile.store.model.records import LARGEST_PAGE, LogRow
from ductile.struct import Value, about, replace

DEFAULT_JOBS = 50
#: In place of the id of a store, so that no daemon takes the processes for those of its jobs.
_NO_STORE = "none"
_MAX_DIFFERENCES = 20
_WRITES = "it writes: running it again would repeat what it does outside"


def _decode_paths(name: str, value: JsonValue) -> tuple[JsonPath, ...]:
    paths = value if isinstance(value, list) else [value]
    patterns = [parse_pattern(path) if isinstance(path, str) else None for path in paths]
    if None in patterns:
        example = "Write paths such as result.fetched_at or events.*.payload.at."
        raise refused(name, f"{name} has to be a list of paths", example)
    return tuple(path for path in patterns if path is not None)


class ReplayPlugin(OnePlugin):
    candidate: Annotated[
        str | None,
        about(
            "The directory of the changed plugin, on the machine of the daemon (default: the plugin and its "
            "settings as they are on disk)."
        ),
    ] = None
    last: Annotated[
        int, Meta(ge=1, le=LARGEST_PAGE, description="How many of its latest jobs are replayed.")
    ] = DEFAULT_JOBS
    command: Annotated[str | None, about("Only jobs of this command.")] = None
    ignore: Annotated[
        tuple[JsonPath, ...],
        Meta(
            description="Paths that are not compared, such as result.fetched_at or events.*.payload.at.",
            extra={"decode": _decode_paths},
            extra_json_schema={"type": "array", "items": {"type": "string"}},
        ),
    ] = ()
    include_writes: Annotated[
        bool, about("Replay write commands too: what they do outside of Ductile happens again.")
    ] = False


class ReplayedJob(Value):
    job_id: Id
    command: str
    recorded_at: Timestamp
    verdict: ReplayVerdict
    differences: Annotated[list[AnswerDifference], about("At most 20.")]
    duration_ms: Annotated[float | None, about("Of the candidate.")]


class JobNotReplayed(Value):
    job_id: Id
    command: str
    reason: str


class PluginReplay(Response):
    plugin: str
    candidate: Annotated[str, about("The directory or script that was run.")]
    passed: Annotated[bool, about("Whether no answer is `different` and none `fails_now`.")]
    counts: Annotated[dict[str, int], about("How many jobs have each verdict.")]
    jobs: Annotated[list[ReplayedJob], about("Newest first.")]
    not_replayed: list[JobNotReplayed]
    not_reproduced: Annotated[
        list[str], about("What was not as it was for the recorded jobs, and can be why an answer differs.")
    ]


async def replay_plugin(context: OperationContext, request: ReplayPlugin) -> PluginReplay:
    """Run recorded requests against the candidate and compare the answers. Nothing is stored.

    Raises `RefusedError` for a candidate that cannot run, `NotFoundError` if no job can be replayed.
    """
    context.refuse_with_limits("replay jobs")  # Its processes count against no limit.
    snapshot = await _with_candidate(context, request)
    plugin = runnable_plugin(snapshot, request.plugin)
    if request.command is not None:
        known_command(plugin, request.command)
    runner = SpawnRunner()
    try:
        with TemporaryDirectory(prefix="ductile-replay-") as scratch:
            replayer = _Replayer(context, request, snapshot, runner, scratch)
            async for recording in find_recordings(
                context, snapshot, request.plugin, request.command, limit=request.last
            ):
                await replayer.replay(recording)
            replayer.refuse_nothing_replayed()
            return replayer.report(plugin)
    finally:
        # Ends processes that still run, also when the caller has disconnected.
        await asyncio.shield(runner.close())


class _Replayer:
    """Runs recorded requests and collects the verdicts."""

    def __init__(
        self,
        context: OperationContext,
        request: ReplayPlugin,
        snapshot: Snapshot,
        runner: SpawnRunner,
        scratch: str,
    ) -> None:
        self._request = request
        self._candidate = snapshot
        self._runner = runner
        self._host = LaunchHost(
            store_id=_NO_STORE,
            environ=dict(context.environ),
            directory=str(Path.cwd()),
            now=context.now,
            data_directory=scratch,
        )
        self._baseline = _baseline(context.snapshot(), snapshot, request)
        self._has_state = False
        self._jobs: list[ReplayedJob] = []
        self._not_replayed: list[JobNotReplayed] = []

    async def replay(self, recording: Recording | LostRecording) -> None:
        """Run one recorded request against the candidate and add its verdict, or why it was not run."""
        recorded = recording.execution
        command = commands_of(self._candidate.plugins[self._request.plugin]).get(recorded.command)
        if isinstance(recording, LostRecording):
            self._leave_out(recorded, f"no longer kept: its {recording.lost}")
            return
        if command is None:
            self._leave_out(recorded, "the candidate has no such command")
            return
        if command.type is not CommandType.READ and not self._request.include_writes:
            self._leave_out(recorded, _WRITES)
            return
        self._has_state |= bool(recording.claim.state)
        replayed = await self._run(recording, self._candidate)
        differences = compare_responses(recorded, replayed, self._request.ignore)
        verdict = judge_responses(recorded, replayed, differences)
        if verdict not in HARMLESS and (snapshot := self._baseline_for(recorded.command)) is not None:
            baseline = await self._run(recording, snapshot)
            drift = compare_responses(baseline, replayed, self._request.ignore)
            if judge_responses(baseline, replayed, drift) is ReplayVerdict.SAME:
                verdict = ReplayVerdict.DRIFTED
        self._jobs.append(
            ReplayedJob(
                job_id=recorded.job_id,
                command=recorded.command,
                recorded_at=timestamp(recorded.completed_at),
                verdict=verdict,
                differences=[
                    describe_difference(difference) for difference in differences[:_MAX_DIFFERENCES]
                ],
                duration_ms=milliseconds(replayed.duration),
            )
        )

    def _leave_out(self, recorded: LogRow, reason: str) -> None:
        """Note that a recorded request is not run, and why."""
        job = JobNotReplayed(job_id=recorded.job_id, command=recorded.command, reason=reason)
        self._not_replayed.append(job)

    def _baseline_for(self, command: str) -> Snapshot | None:
        """Return the baseline if it may run this command: a command that writes is not run once more."""
        if self._baseline is None or self._request.include_writes:
            return None
        declared = commands_of(self._baseline.plugins[self._request.plugin]).get(command)
        return self._baseline if declared is not None and declared.type is CommandType.READ else None

    async def _run(self, recording: Recording, snapshot: Snapshot) -> LogRow:
        """Run a recorded request. Returns the execution as the log would have it."""
        prepared = prepare_launch(recording.claim, snapshot, self._host)
        outcome: Outcome
        if isinstance(prepared, PreparedLaunch):
            launch = replace(prepared.launch, warm=None)
            started = await self._runner.start(launch)
            ended = started if isinstance(started, CouldNotStart | ForkServerLost) else await started.wait()
            outcome = mask_state_secrets(interpret(ended, prepared.script).outcome)
        else:
            outcome = prepared
        evidence = outcome.evidence
        return replace(
            recording.execution,
            status=LogStatus.SUCCEEDED if isinstance(outcome, Completed) else LogStatus.FAILED,
            error=getattr(outcome, "error", None),
            result=evidence.stdout,
            exit_code=evidence.exit_code,
            output=evidence.output,
            duration=evidence.duration,
        )

    def refuse_nothing_replayed(self) -> None:
        """Raise `NotFoundError` if no job was replayed: that must not look like a success."""
        if self._jobs:
            return
        name = self._request.plugin
        if not self._not_replayed:
            raise NotFoundError(f"no job of {name} has ended with an answer that is still kept")
        count_all = len(self._not_replayed)
        ((reason, count),) = Counter(job.reason for job in self._not_replayed).most_common(1)
        hint = None
        if reason == _WRITES:
            hint = (
                "Declare commands without side effects as `type: read`. With these effects: "
                f"ductile plugin replay {name} --include-writes"
            )
        raise NotFoundError(
            f"none of the last {count_all} jobs of {name} can be replayed; of {count}: {reason}",
            hint=hint,
        )

    def report(self, plugin: PluginInstance) -> PluginReplay:
        """Return the response with all verdicts. `plugin` is the candidate."""
        verdicts = Counter(job.verdict for job in self._jobs)
        candidate = plugin.uses
        if plugin.installed is not None:
            script = plugin.installed.script
            candidate = str(plugin.installed.directory) if script is None else " ".join(script.argv)
        return PluginReplay(
            plugin=plugin.name,
            candidate=candidate,
            passed=all(verdict in HARMLESS for verdict in verdicts),
            counts={str(verdict): verdicts[verdict] for verdict in ReplayVerdict if verdicts[verdict]},
            jobs=self._jobs,
            not_replayed=self._not_replayed,
            not_reproduced=[
                *(["state: each job had a copy of the present one"] if self._has_state else []),
                "settings and secrets: as configured now",
                "files: the plugin had an empty data directory",
                "the time, and the services that the plugin calls",
            ],
        )


async def _with_candidate(context: OperationContext, request: ReplayPlugin) -> Snapshot:
    """Return the configuration on disk, with the candidate in place of the plugin.

    Raises `DeniedError` if a caller with a token names a directory outside of the plugin roots.
    """
    active = context.snapshot()
    disk = active if context.engine is None else await context.engine.reloader.load_unsealed()
    if request.candidate is None:
        return disk
    directory = Path(request.candidate)
    if not directory.is_absolute():
        raise refused("candidate", "candidate has to be an absolute path on the machine of the daemon")
    if context.source.scopes is not None:
        _refuse_outside_roots(active, directory)
    plugin = disk.plugins.get(request.plugin) or runnable_plugin(disk, request.plugin)
    if plugin.is_script:
        raise refused(
            "candidate",
            f"{plugin.name} is a script of the configuration, which has no directory",
            "Change `run` in the configuration, and replay without a candidate.",
        )
    installed = await asyncio.to_thread(_load_candidate, directory)
    instance = replace(plugin, installed=installed, refused=None, enabled=True)
    return replace(disk, plugins={**disk.plugins, plugin.name: instance})


def _load_candidate(directory: Path) -> InstalledPlugin:
    """Return the plugin in a directory, if it passes the trust checks. Blocks."""
    if not (directory / MANIFEST_FILE).exists():
        missing = f"{directory} has no {MANIFEST_FILE}"
        if not directory.is_dir():
            missing = f"there is no directory {directory}"
        raise NotFoundError(missing, hint="Name the directory of a plugin.")
    plugin = load_directory(directory)
    if isinstance(plugin, RefusedPlugin):
        raise RefusedError(f"the candidate cannot run: {plugin.reason}", hint=plugin.hint)
    return plugin


def _refuse_outside_roots(snapshot: Snapshot, directory: Path) -> None:
    """Raise `DeniedError` for a directory that is in no plugin root of the configuration. Blocks."""
    installed = (plugin.installed for plugin in snapshot.plugins.values())
    roots = {plugin.root.resolve() for plugin in installed if plugin is not None and plugin.script is None}
    if directory.resolve().parent not in roots:
        raise DeniedError(
            "over HTTP a candidate has to lie in a plugin root of the configuration",
            hint="Put it beside the plugin, or run the replay on the machine of the daemon.",
        )


def _baseline(active: Snapshot, candidate: Snapshot, request: ReplayPlugin) -> Snapshot | None:
    """Return the configuration in force, if running its plugin shows how it answers without the change.

    None if files were changed in place: the plugin in force would run the changed files too.
    """
    current, changed = active.plugins.get(request.plugin), candidate.plugins[request.plugin]
    if current is None or current.installed is None or not current.enabled or changed.installed is None:
        return None
    if current.installed.directory != changed.installed.directory:
        return active
    is_same_program = current.installed.fingerprint == changed.installed.fingerprint
    return active if is_same_program and current.config_hash != changed.config_hash else None
