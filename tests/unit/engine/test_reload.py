"""A reload is stored before it takes effect; a reload that cannot be stored has no effect."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders.engines import EngineUnderTest, an_engine
from builders.plugins import SCRIPT, a_manifest, a_plugin
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.errors import ConflictError, StoreFullError, TooBusyError
from ductile.operations.submission import RunCommand, run_command
from ductile.store.model.maintenance import ConfigOrigin
from ductile.telemetry.signals import Signal

ECHO = "  echo: {}\n"
WITH_INIT = a_manifest("later").replace("[poll,", "[init, poll,")
#: A plugin that records its commands in their order.
NOTES = (
    "#!/bin/sh\ncat >/dev/null\n"
    'echo "$DUCTILE_COMMAND" >>"$(dirname "$0")/commands"\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)


async def origins(harness: EngineUnderTest) -> list[ConfigOrigin]:
    return [record.origin for record in await harness.store.real.config_history(limit=9)]


async def test_a_reload_that_the_store_cannot_record_changes_nothing(tmp_path: Path) -> None:
    """The old configuration stays; caller and log get the reason."""
    a_plugin(tmp_path / "plugins", "later", manifest=WITH_INIT, script=NOTES)
    async with an_engine(tmp_path, ECHO) as harness:
        await harness.start_and_wait()
        before = harness.engine.snapshot()
        harness.configure(ECHO + "  later: {}\n")
        harness.store.full.add("record_config")
        with pytest.raises(StoreFullError):
            await harness.engine.reloader.reload()
        assert harness.engine.snapshot() is before
        assert (await harness.until(Signal.CONFIG_REFUSED)).message == "the disk is full"
        assert await origins(harness) == [ConfigOrigin.START]
        harness.store.full.clear()
        await harness.engine.reloader.reload()
        assert "later" in harness.engine.snapshot().plugins
        assert await origins(harness) == [ConfigOrigin.RELOAD, ConfigOrigin.START]


async def test_a_reload_tells_where_its_warnings_are(tmp_path: Path) -> None:
    """Warnings have file, line and key, as in `config check`."""
    async with an_engine(tmp_path, ECHO) as harness:
        await harness.start_and_wait()
        harness.configure(ECHO + "  more: {uses: echo, config: {api_key: canary}}\n")
        warnings = (await harness.engine.reloader.reload()).warnings
        (warning,) = (candidate for candidate in warnings if "in the clear" in str(candidate))
        assert warning.key == "plugins.more.config.api_key"
        assert str(warning.file).endswith("config.yaml")
        assert warning.line is not None
        assert "canary" not in str(warning)


async def test_jobs_of_a_removed_plugin_end_after_the_switch(tmp_path: Path) -> None:
    """Queued jobs end as dead with `plugin_removed`, and waiting callers are notified."""
    async with an_engine(tmp_path, ECHO + "  held: {uses: echo, parallelism: 1}\n") as harness:
        await harness.start_and_wait()
        job_id = await queue_job(harness)
        with harness.engine.waiters.waiting_for(job_id) as ended:
            harness.configure(ECHO)
            assert (await harness.engine.reloader.reload()).effects.plugins.removed == ("held",)
            assert ended.done()
        job = await harness.job(job_id)
        assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.PLUGIN_REMOVED)


async def queue_job(harness: EngineUnderTest) -> str:
    """Return a job of `held` that cannot start, because claims fail."""
    # The first claim has ended; otherwise it would find the job in the same commit.
    await harness.store.claim_called.wait()
    harness.store.full.add("claim")
    return await harness.submit("held")


async def test_jobs_of_a_removed_plugin_that_cannot_be_ended_now_end_at_their_claim(tmp_path: Path) -> None:
    """The reload holds although the disk was full for its second part; no job is run or lost."""
    async with an_engine(tmp_path, ECHO + "  held: {uses: echo}\n") as harness:
        await harness.start_and_wait()
        job_id = await queue_job(harness)
        harness.configure(ECHO)
        harness.store.full.add("end_queued")
        assert (await harness.engine.reloader.reload()).effects.plugins.removed == ("held",)
        assert (await harness.job(job_id)).status is JobStatus.QUEUED
        with harness.engine.waiters.waiting_for(job_id) as ended:
            harness.store.full.clear()
            harness.engine.dispatcher.prepare_claim()
            async with asyncio.timeout(60):
                await ended
        assert (await harness.job(job_id)).reason is JobReason.PLUGIN_REMOVED
        assert await harness.store.real.list_executions(job_id) != ()


async def test_jobs_of_a_plugin_wait_for_the_init_that_a_reload_brings(tmp_path: Path) -> None:
    """The jobs wait from the commit of the init on, which is before the engine is notified."""
    plugin_directory = a_plugin(tmp_path / "plugins", "later", manifest=WITH_INIT, script=NOTES)
    async with an_engine(tmp_path, ECHO) as harness:
        await harness.start_and_wait()
        harness.configure(ECHO + "  later: {}\n")
        harness.store.pause_after_record = asyncio.Event()
        reload = asyncio.create_task(harness.engine.reloader.reload())
        async with asyncio.timeout(60):
            await harness.store.recorded.wait()
            harness.store.claim_called.clear()
            job_id = await harness.submit("later")
            await harness.store.claim_called.wait()
            with harness.engine.waiters.waiting_for(job_id) as ended:
                harness.store.pause_after_record.set()
                await reload
                await ended
        assert (await harness.job(job_id)).status is JobStatus.SUCCEEDED
        assert (plugin_directory / "commands").read_text().split() == ["init", "poll"]


async def test_a_setting_that_needs_a_restart_refuses_the_whole_reload(tmp_path: Path) -> None:
    """The error names the setting, and no configuration is recorded."""
    async with an_engine(tmp_path, ECHO) as harness:
        await harness.start_and_wait()
        harness.configure(ECHO + "  other: {uses: echo}\nstate: {path: elsewhere.db}\n")
        with pytest.raises(ConflictError) as excinfo:
            await harness.engine.reloader.reload()
        assert excinfo.value.details == {"settings": ["state"]}
        assert await origins(harness) == [ConfigOrigin.START]


async def test_a_cancelled_caller_does_not_stop_a_reload_half_way(tmp_path: Path) -> None:
    """The configuration that is stored as loaded takes effect."""
    async with an_engine(tmp_path, ECHO) as harness:
        await harness.start_and_wait()
        harness.configure(ECHO + "  other: {uses: echo}\n")
        caller = asyncio.create_task(harness.engine.reloader.reload())
        await asyncio.sleep(0)
        caller.cancel()
        await harness.until(Signal.CONFIG_LOADED)
        await harness.until(Signal.CONFIG_LOADED)
        assert "other" in harness.engine.snapshot().plugins


async def test_the_end_of_a_run_counts_by_the_schedule_that_is_in_force(tmp_path: Path) -> None:
    """A running job keeps its configuration; the new configuration decides when the next run is due."""
    script = SCRIPT.replace("echo", 'read -r _ <"$(dirname "$0")/gate"\necho', 1)
    gate = a_plugin(tmp_path / "plugins", "gated", script=script) / "gate"
    os.mkfifo(gate)
    async with an_engine(tmp_path, "  gated: {schedule: {every: 10h}}\n") as harness:
        await harness.start_and_wait()
        await harness.until(Signal.JOB_STARTED)
        harness.configure("  gated: {schedule: {every: 1h}}\n")
        await harness.engine.reloader.reload()
        while "every 3600" not in (await harness.store.real.list_schedules())[0].fingerprint:
            pass
        await asyncio.to_thread(gate.write_text, "go on\n")
        await harness.until(Signal.JOB_SUCCEEDED)
        (entry,) = await harness.store.real.list_schedules()
        assert entry.next_at is not None
        assert entry.next_at < datetime.now(UTC) + timedelta(hours=2)


# ------------------------------------------------------------------------------------------- draining

#: A plugin that waits until a file `go` lies beside it.
SLOW_ECHO = (
    "#!/bin/sh\ncat >/dev/null\n"
    'while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)


async def test_a_reload_with_a_drain_waits_and_refuses_what_is_new(tmp_path: Path) -> None:
    """Queued jobs run; submissions are refused, except those of the daemon itself."""
    a_plugin(tmp_path / "plugins", "gated", script=SLOW_ECHO)
    async with an_engine(tmp_path, ECHO + "  gated: {parallelism: 1}\n") as harness:
        await harness.start_and_wait()
        jobs = [await harness.submit("gated") for _ in range(2)]
        harness.configure(ECHO)
        reloading = asyncio.create_task(harness.engine.reloader.reload(timedelta(minutes=1)))
        await harness.until(Signal.PLUGIN_DRAINING)
        with pytest.raises(ConflictError, match="is being drained"):
            await run_command(harness.context, RunCommand(plugin="gated"))
        with pytest.raises(ConflictError, match="under way"):
            await harness.engine.reloader.reload()
        with pytest.raises(ConflictError, match="under way"):
            await harness.engine.reloader.reload(timedelta(minutes=1))
        assert harness.engine.draining == {"gated"}
        (tmp_path / "plugins" / "gated" / "go").touch()
        response = await reloading
        assert (response.effects.plugins.removed, response.ends) == (("gated",), ())
        assert [(await harness.job(job)).status for job in jobs] == [JobStatus.SUCCEEDED] * 2
        assert harness.engine.draining == frozenset()


async def test_a_drain_is_abandoned_when_its_caller_goes_or_its_time_is_over(tmp_path: Path) -> None:
    """The plugin accepts jobs again, and its queued jobs are unchanged."""
    a_plugin(tmp_path / "plugins", "gated", script=SLOW_ECHO)
    async with an_engine(tmp_path, ECHO + "  gated: {parallelism: 1}\n") as harness:
        await harness.start_and_wait()
        jobs = [await harness.submit("gated") for _ in range(2)]
        with pytest.raises(TooBusyError, match="gated: "):
            await harness.engine.reloader.drain(("gated",), timedelta())
        await harness.until(Signal.PLUGIN_DRAIN_ABANDONED)
        harness.configure(ECHO)
        reloading = asyncio.create_task(harness.engine.reloader.reload(timedelta(minutes=1)))
        await harness.until(Signal.PLUGIN_DRAINING)
        reloading.cancel()
        await harness.until(Signal.PLUGIN_DRAIN_ABANDONED)
        assert harness.engine.draining == frozenset()
        assert "gated" in harness.engine.snapshot().plugins
        await run_command(harness.context, RunCommand(plugin="gated"))
        assert {(await harness.job(job)).reason for job in jobs} <= {JobReason.SUBMITTED, JobReason.CLAIMED}


async def test_no_drain_begins_before_the_switch_of_another_has_ended(tmp_path: Path) -> None:
    """The caller may have gone; the end of the first switch would reopen the plugins that the next drain
    closed.
    """
    async with an_engine(tmp_path, ECHO + "  other: {uses: echo}\n") as harness:
        await harness.start_and_wait()
        harness.configure(ECHO)
        harness.store.pause_after_record = asyncio.Event()
        caller = asyncio.create_task(harness.engine.reloader.reload(timedelta(minutes=1)))
        async with asyncio.timeout(60):
            await harness.store.recorded.wait()  # the caller waits for the switch
        caller.cancel()
        await asyncio.sleep(0)
        with pytest.raises(ConflictError, match="under way"):
            await harness.engine.reloader.reload(timedelta(minutes=1))
        harness.store.pause_after_record.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert "other" not in harness.engine.snapshot().plugins
        assert (await harness.engine.reloader.reload(timedelta(minutes=1))).effects.plugins.removed == ()


async def test_a_plugin_that_has_run_dry_stays_closed_until_it_is_removed(tmp_path: Path) -> None:
    """No job is accepted between the drain and the reload that removes the plugin."""
    async with an_engine(tmp_path, ECHO + "  other: {uses: echo}\n") as harness:
        await harness.start_and_wait()
        await harness.engine.reloader.drain(("other",), timedelta(minutes=1))
        with pytest.raises(ConflictError, match="is being drained"):
            await run_command(harness.context, RunCommand(plugin="other"))
        harness.configure(ECHO)
        assert (await harness.engine.reloader.reload(timedelta(minutes=1))).ends == ()
        assert harness.engine.draining == frozenset()
