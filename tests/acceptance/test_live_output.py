"""Commands and SSE show the output of running jobs, with a daemon and without."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE, Workspace, a_daemon, a_workspace
from builders.http import EventReader, an_api, an_api_workspace
from builders.terminal import DUCTILE

#: A plugin that prints, waits until a file `go` is beside it, prints more and ends. The wait splits `é`.
TALKING = """#!/bin/sh
cat > /dev/null
printf 'caf\\303' >&2
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done
printf '\\251\\nlast \\033[31mline\\n' >&2
echo '{"status": "ok", "result": "done"}'
"""
LINE_FIRST = TALKING.replace("printf 'caf\\303' >&2", "printf 'first\\n' >&2")
NOISY = """#!/bin/sh
cat > /dev/null
head -c 70000 /dev/zero | tr '\\0' x >&2
echo '{"status": "ok", "result": "done"}'
"""


def a_follower(workspace: Workspace, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [DUCTILE, *words, "--config", "demo"],
        cwd=workspace.directory,
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_job_is_followed_until_its_end(tmp_path: Path) -> None:
    """Output comes while the job runs. The follower ends with the outcome, which decides its exit status."""
    workspace = a_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", LINE_FIRST)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "talking", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        with a_follower(workspace, "job", "logs", "-f", job_id) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "first\n"
            assert workspace.json("job", "show", job_id)["status"] == "running"
            (plugin / "go").touch()
            rest, _ = follower.communicate(timeout=PATIENCE)
        assert follower.returncode == 0
        assert "last" in rest
        assert rest.splitlines()[-1] == f"{job_id} succeeded (completed)"
        # A follower that starts after the end prints the kept output and the same outcome.
        result = workspace.ductile("job", "logs", "-f", job_id)
        assert "  first\n" in result.out
        assert result.out.endswith(f"{job_id} succeeded (completed)\n")
        lines = workspace.ductile("job", "logs", "-f", job_id, "--json").out.splitlines()
        documents = [json.loads(line) for line in lines]
        assert [next(iter(document)) for document in documents] == ["execution", "job"]
    assert workspace.ductile("job", "logs", "-f", job_id).status == 0


def has_succeeded(events: list[dict[str, Any]]) -> bool:
    return any(event["data"].get("data", {}).get("to") == "succeeded" for event in events)


def output_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with output."""
    return [event for event in events if event["event"] == "job.output"]


def test_the_stream_of_one_job_has_its_output(tmp_path: Path) -> None:
    """`job.output` has no id and splits no character, and needs the right to read jobs."""
    workspace = an_api_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", TALKING)
    with an_api(workspace) as api:
        job_id = api.post("/plugin/talking/poll")["job_id"]
        with EventReader(api, query=f"?job_id={job_id}", scope="*") as reader:
            events = reader.wait_until(output_events)
            (plugin / "go").touch()
            events = reader.wait_until(has_succeeded)
        # The token of this reader may read events, but no jobs.
        with EventReader(api, query=f"?job_id={job_id}&after=0") as reader:
            assert not output_events(reader.wait_until(has_succeeded))
        outputs = [event["data"] for event in output_events(events)]
        assert "".join(part["text"] for part in outputs) == "café\nlast \x1b[31mline\n"
        assert [part["offset"] for part in outputs] == [0, *(part["end"] for part in outputs[:-1])]
        assert {(part["job_id"], part["execution"], part["stream"]) for part in outputs} == {
            (job_id, 1, "stderr")
        }
        assert all(not event.get("id") for event in output_events(events))


def test_a_run_shows_output_on_standard_error(tmp_path: Path) -> None:
    """Standard output is the result alone, with a daemon and without."""
    workspace = a_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", TALKING)
    (plugin / "go").touch()
    for with_daemon in (False, True):
        if with_daemon:
            with a_daemon(workspace):
                result = workspace.ductile("run", "talking", "--follow")
        else:
            result = workspace.ductile("run", "talking", "--follow")
        assert (result.status, result.out) == (0, "done\n")
        assert result.err == "café\nlast \x1b[31mline\n"
    assert workspace.ductile("run", "talking").err == ""
    lines = workspace.terminal.on_screen("run", "talking", "--config", "demo", both=True)
    assert "last \\x1b[31mline" in lines


def test_truncated_stderr_is_told(tmp_path: Path) -> None:
    """The log of an execution says that more was printed than is kept."""
    workspace = a_workspace(tmp_path, "  noisy: {}\n")
    workspace.plugin("noisy", NOISY)
    job_id = workspace.json("run", "noisy")["job_id"]
    (execution,) = workspace.json("job", "logs", job_id)["executions"]
    assert execution["stderr_truncated"] is True
    assert len(execution["stderr"]) == 65536
    assert workspace.json("job", "show", job_id)["executions"][0]["stderr_truncated"] is True
    message = "more was printed on stderr than is kept"
    assert message in workspace.ductile("job", "logs", job_id).out
    assert message in workspace.ductile("job", "show", job_id).out.lower()
    other = workspace.json("run", "echo")["job_id"]
    assert workspace.json("job", "logs", other)["executions"][0]["stderr_truncated"] is False


def test_a_name_is_a_plugin_or_a_pipeline(tmp_path: Path) -> None:
    """`run` tries a plugin once, chooses its command by the payload, and runs a pipeline by its name."""
    workspace = a_workspace(tmp_path, "  broken: {}\npipelines:\n  - {name: hello, steps: [{uses: echo}]}\n")
    workspace.plugin("broken", "#!/bin/sh\ncat >/dev/null\nexit 3\n")
    assert workspace.json("run", "echo")["command"] == "poll"
    assert workspace.json("run", "echo", "--payload", "{}")["command"] == "handle"
    job = workspace.json("run", "broken", status=1)
    assert (job["status"], job["max_attempts"]) == ("dead", 1)
    with a_daemon(workspace):
        assert workspace.json("run", "broken", "--retry", "--no-wait")["status"] == "queued"
        job_id = workspace.json("run", "broken", "--no-wait")["job_id"]
        assert workspace.json("job", "show", job_id)["max_attempts"] == 4
        run = workspace.json("run", "hello")
        assert (run["plugin"], run["command"], run["status"]) == ("pipeline", "hello", "succeeded")
        refused = workspace.json("run", "hello", "poll", status=2)["error"]
        assert refused["message"] == "hello is a pipeline, which has no commands"
        assert workspace.json("run", "helo", status=1)["error"]["hint"] == "did you mean hello?"
    workspace.config.write_text(workspace.config.read_text().replace("name: hello", "name: echo"))
    assert workspace.ductile("config", "lock").status == 0
    result = workspace.ductile("run", "echo")
    assert result.out == "done\n"
    assert "note: echo is also the name of a pipeline: `ductile pipeline run echo" in result.err


def test_the_stdout_of_a_script_is_followed_too(tmp_path: Path) -> None:
    """The output of a script on either stream is shown while it runs, and kept at its end."""
    workspace = a_workspace(tmp_path, '  script: {run: "echo out; echo err >&2"}\n')
    result = workspace.ductile("run", "script", "--follow")
    assert (result.status, result.out) == (0, "out\n")
    assert sorted(result.err.splitlines()) == ["err", "out"]


@pytest.mark.parametrize("with_daemon", [False, True])
def test_a_terminal_shows_the_stdout_of_a_script_once(tmp_path: Path, with_daemon: bool) -> None:
    """A terminal shows it while the script runs and not again as the result; a pipe gets the result."""
    workspace = a_workspace(tmp_path, '  script: {run: "echo printed"}\n')
    with a_daemon(workspace) if with_daemon else nullcontext():
        lines = workspace.terminal.on_screen("run", "script", "--config", "demo", both=True)
        piped = workspace.ductile("run", "script")
    assert [line for line in lines if "printed" in line] == ["printed"]
    assert piped.out == "printed\n"


def test_without_a_daemon_the_output_of_other_jobs_is_labelled(tmp_path: Path) -> None:
    """The command runs a job and the jobs that follow from it, and labels the lines of the latter."""
    workspace = a_workspace(
        tmp_path, "  source: {}\n  sink: {}\nroutes: [{from: source, event_type: found, to: sink}]\n"
    )
    response = '{"status": "ok", "result": 1, "events": [{"type": "found", "payload": {}}]}'
    workspace.plugin("source", f"#!/bin/sh\ncat >/dev/null\necho from the first >&2\necho '{response}'\n")
    workspace.plugin(
        "sink",
        '#!/bin/sh\ncat >/dev/null\necho from the second >&2\necho \'{"status": "ok", "result": 2}\'\n',
    )
    result = workspace.ductile("run", "source", "--follow")
    other = workspace.json("job", "show", "last:sink")["job_id"]
    assert result.err.splitlines() == ["from the first", f"[sink handle {other[-8:]}] from the second"]
