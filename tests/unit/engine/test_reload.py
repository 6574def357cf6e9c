"""A reload is on disk before it is in force; what the store cannot take does not happen."""

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
#: Says which command it was asked for, in the order in which it was.
NOTES = (
    "#!/bin/sh\ncat >/dev/null\n"
    'echo "$DUCTILE_COMMAND" >>"$(dirname "$0")/commands"\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)


async def origins(bench: EngineUnderTest) -> list[ConfigOrigin]:
    return [record.origin for record in await bench.store.real.config_history(limit=9)]


async def test_a_reload_that_the_store_cannot_record_changes_nothing(tmp_path: Path) -> None:
    """The old configuration stays; caller and log get the reason."""
    a_plugin(tmp_path / "plugins", "later", manifest=WITH_INIT, script=NOTES)
    async with an_engine(tmp_path, ECHO) as bench:
        await bench.start_and_wait()
        before = bench.engine.snapshot()
        bench.configure(ECHO + "  later: {}\n")
        bench.store.full.add("record_config")
        with pytest.raises(StoreFullError):
            await bench.engine.reloader.reload()
        assert bench.engine.snapshot() is before
        assert (await bench.until(Signal.CONFIG_REFUSED)).message == "the disk is full"
        assert await origins(bench) == [ConfigOrigin.START]
        bench.store.full.clear()
        await bench.engine.reloader.reload()
        assert "later" in bench.engine.snapshot().plugins
        assert await origins(bench) == [ConfigOrigin.RELOAD, ConfigOrigin.START]


async def test_a_reload_tells_where_its_warnings_are(tmp_path: Path) -> None:
    """File, line and key, as `config check` has them."""
    async with an_engine(tmp_path, ECHO) as bench:
        await bench.start_and_wait()
        bench.configure(ECHO + "  more: {uses: echo, config: {api_key: canary}}\n")
        warnings = (await bench.engine.reloader.reload()).warnings
        (warning,) = (each for each in warnings if "in the clear" in str(each))
        assert warning.key == "plugins.more.config.api_key"
        assert str(warning.file).endswith("config.yaml")
        assert warning.line is not None
        assert "canary" not in str(warning)


async def test_jobs_of_a_removed_plugin_end_after_the_switch(tmp_path: Path) -> None:
    """Queued jobs end dead/plugin_removed, and who waits for them hears of it."""
    async with an_engine(tmp_path, ECHO + "  held: {uses: echo, parallelism: 1}\n") as bench:
        await bench.start_and_wait()
        job_id = await queued(bench)
        with bench.engine.waiters.waiting_for(job_id) as ended:
            bench.configure(ECHO)
            assert (await bench.engine.reloader.reload()).effects.plugins.removed == ("held",)
            assert ended.done()
        job = await bench.job(job_id)
        assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.PLUGIN_REMOVED)


async def queued(bench: EngineUnderTest) -> str:
    """A job of `held` that cannot start, because nothing can be claimed."""
    # The first claim is over: under way, it would find the job that is written with it.
    await bench.store.claim_called.wait()
    bench.store.full.add("claim")
    return await bench.submit("held")


async def test_jobs_of_a_removed_plugin_that_cannot_be_ended_now_end_at_their_claim(tmp_path: Path) -> None:
    """The reload holds although the disk was full for the rest of it; no job is run or lost."""
    async with an_engine(tmp_path, ECHO + "  held: {uses: echo}\n") as bench:
        await bench.start_and_wait()
        job_id = await queued(bench)
        bench.configure(ECHO)
        bench.store.full.add("end_queued")
        assert (await bench.engine.reloader.reload()).effects.plugins.removed == ("held",)
        assert (await bench.job(job_id)).status is JobStatus.QUEUED
        with bench.engine.waiters.waiting_for(job_id) as ended:
            bench.store.full.clear()
            bench.engine.dispatcher.prepare_claim()
            async with asyncio.timeout(60):
                await ended
        assert (await bench.job(job_id)).reason is JobReason.PLUGIN_REMOVED
        assert await bench.store.real.list_executions(job_id) != ()


async def test_jobs_of_a_plugin_wait_for_the_init_that_a_reload_brings(tmp_path: Path) -> None:
    """From the moment the init is on disk, which is before the engine hears of it."""
    place = a_plugin(tmp_path / "plugins", "later", manifest=WITH_INIT, script=NOTES)
    async with an_engine(tmp_path, ECHO) as bench:
        await bench.start_and_wait()
        bench.configure(ECHO + "  later: {}\n")
        bench.store.pause_after_record = asyncio.Event()
        reload = asyncio.create_task(bench.engine.reloader.reload())
        async with asyncio.timeout(60):
            await bench.store.recorded.wait()
            bench.store.claim_called.clear()
            job_id = await bench.submit("later")
            await bench.store.claim_called.wait()
            with bench.engine.waiters.waiting_for(job_id) as ended:
                bench.store.pause_after_record.set()
                await reload
                await ended
        assert (await bench.job(job_id)).status is JobStatus.SUCCEEDED
        assert (place / "commands").read_text().split() == ["init", "poll"]


async def test_a_setting_that_needs_a_restart_refuses_the_whole_reload(tmp_path: Path) -> None:
    """Named, and nothing is recorded."""
    async with an_engine(tmp_path, ECHO) as bench:
        await bench.start_and_wait()
        bench.configure(ECHO + "  other: {uses: echo}\nstate: {path: elsewhere.db}\n")
        with pytest.raises(ConflictError) as refused:
            await bench.engine.reloader.reload()
        assert refused.value.details == {"settings": ["state"]}
        assert await origins(bench) == [ConfigOrigin.START]


async def test_a_cancelled_caller_does_not_stop_a_reload_half_way(tmp_path: Path) -> None:
    """The configuration that is stored as loaded is the one in force."""
    async with an_engine(tmp_path, ECHO) as bench:
        await bench.start_and_wait()
        bench.configure(ECHO + "  other: {uses: echo}\n")
        caller = asyncio.create_task(bench.engine.reloader.reload())
        await asyncio.sleep(0)
        caller.cancel()
        await bench.until(Signal.CONFIG_LOADED)
        await bench.until(Signal.CONFIG_LOADED)
        assert "other" in bench.engine.snapshot().plugins


async def test_the_end_of_a_run_counts_by_the_schedule_that_is_in_force(tmp_path: Path) -> None:
    """A run in flight keeps its configuration; when the next one is, the new one decides."""
    script = SCRIPT.replace("echo", 'read -r _ <"$(dirname "$0")/gate"\necho', 1)
    gate = a_plugin(tmp_path / "plugins", "gated", script=script) / "gate"
    os.mkfifo(gate)
    async with an_engine(tmp_path, "  gated: {schedule: {every: 10h}}\n") as bench:
        await bench.start_and_wait()
        await bench.until(Signal.JOB_STARTED)
        bench.configure("  gated: {schedule: {every: 1h}}\n")
        await bench.engine.reloader.reload()
        while "every 3600" not in (await bench.store.real.list_schedules())[0].fingerprint:
            pass
        await asyncio.to_thread(gate.write_text, "go on\n")
        await bench.until(Signal.JOB_SUCCEEDED)
        (entry,) = await bench.store.real.list_schedules()
        assert entry.next_at is not None
        assert entry.next_at < datetime.now(UTC) + timedelta(hours=2)


# ------------------------------------------------------------------------------------------- draining

#: Waits until a file `go` lies beside it.
SLOW_ECHO = (
    "#!/bin/sh\ncat >/dev/null\n"
    'while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)


async def test_a_reload_with_a_drain_waits_and_refuses_what_is_new(tmp_path: Path) -> None:
    """Queued jobs run; submissions are refused, except those of the daemon itself."""
    a_plugin(tmp_path / "plugins", "gated", script=SLOW_ECHO)
    async with an_engine(tmp_path, ECHO + "  gated: {parallelism: 1}\n") as bench:
        await bench.start_and_wait()
        jobs = [await bench.submit("gated") for _ in range(2)]
        bench.configure(ECHO)
        reloading = asyncio.create_task(bench.engine.reloader.reload(timedelta(minutes=1)))
        await bench.until(Signal.PLUGIN_DRAINING)
        with pytest.raises(ConflictError, match="is being drained"):
            await run_command(bench.context, RunCommand(plugin="gated"))
        with pytest.raises(ConflictError, match="under way"):
            await bench.engine.reloader.reload()
        with pytest.raises(ConflictError, match="under way"):
            await bench.engine.reloader.reload(timedelta(minutes=1))
        assert bench.engine.draining == {"gated"}
        (tmp_path / "plugins" / "gated" / "go").touch()
        done = await reloading
        assert (done.effects.plugins.removed, done.ends) == (("gated",), ())
        assert [(await bench.job(job)).status for job in jobs] == [JobStatus.SUCCEEDED] * 2
        assert bench.engine.draining == frozenset()


async def test_a_drain_is_abandoned_when_its_caller_goes_or_its_time_is_over(tmp_path: Path) -> None:
    """The plugin takes jobs again, and its jobs are as they were."""
    a_plugin(tmp_path / "plugins", "gated", script=SLOW_ECHO)
    async with an_engine(tmp_path, ECHO + "  gated: {parallelism: 1}\n") as bench:
        await bench.start_and_wait()
        jobs = [await bench.submit("gated") for _ in range(2)]
        with pytest.raises(TooBusyError, match="gated: "):
            await bench.engine.reloader.drain(("gated",), timedelta())
        await bench.until(Signal.PLUGIN_DRAIN_ABANDONED)
        bench.configure(ECHO)
        reloading = asyncio.create_task(bench.engine.reloader.reload(timedelta(minutes=1)))
        await bench.until(Signal.PLUGIN_DRAINING)
        reloading.cancel()
        await bench.until(Signal.PLUGIN_DRAIN_ABANDONED)
        assert bench.engine.draining == frozenset()
        assert "gated" in bench.engine.snapshot().plugins
        await run_command(bench.context, RunCommand(plugin="gated"))
        assert {(await bench.job(job)).reason for job in jobs} <= {JobReason.SUBMITTED, JobReason.CLAIMED}


async def test_no_drain_begins_before_the_switch_of_another_has_ended(tmp_path: Path) -> None:
    """Its caller may have gone: the end of that switch would open what the next one has just closed."""
    async with an_engine(tmp_path, ECHO + "  other: {uses: echo}\n") as bench:
        await bench.start_and_wait()
        bench.configure(ECHO)
        bench.store.pause_after_record = asyncio.Event()
        caller = asyncio.create_task(bench.engine.reloader.reload(timedelta(minutes=1)))
        async with asyncio.timeout(60):
            await bench.store.recorded.wait()  # the caller waits for the switch
        caller.cancel()
        await asyncio.sleep(0)
        with pytest.raises(ConflictError, match="under way"):
            await bench.engine.reloader.reload(timedelta(minutes=1))
        bench.store.pause_after_record.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert "other" not in bench.engine.snapshot().plugins
        assert (await bench.engine.reloader.reload(timedelta(minutes=1))).effects.plugins.removed == ()


async def test_a_plugin_that_has_run_dry_stays_closed_until_it_is_removed(tmp_path: Path) -> None:
    """Between the drain and the reload that removes it nothing comes in."""
    async with an_engine(tmp_path, ECHO + "  other: {uses: echo}\n") as bench:
        await bench.start_and_wait()
        await bench.engine.reloader.drain(("other",), timedelta(minutes=1))
        with pytest.raises(ConflictError, match="is being drained"):
            await run_command(bench.context, RunCommand(plugin="other"))
        bench.configure(ECHO)
        assert (await bench.engine.reloader.reload(timedelta(minutes=1))).ends == ()
        assert bench.engine.draining == frozenset()
