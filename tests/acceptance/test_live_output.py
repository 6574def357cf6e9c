"""What running jobs print is shown while they run: by commands, with a daemon and without, and by SSE."""

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

#: Prints, waits until a file `go` is beside it, prints more and ends. `é` is split by the wait.
TALKING = """#!/bin/sh
cat > /dev/null
printf 'caf\\303' >&2
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done
printf '\\251\\nlast \\033[31mline\\n' >&2
echo '{"status": "ok", "result": "done"}'
"""
BEFORE = TALKING.replace("printf 'caf\\303' >&2", "printf 'first\\n' >&2")
NOISY = """#!/bin/sh
cat > /dev/null
head -c 70000 /dev/zero | tr '\\0' x >&2
echo '{"status": "ok", "result": "done"}'
"""


def following(workspace: Workspace, *words: str) -> subprocess.Popen[str]:
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
    """Output comes while the job runs; the follower ends with the outcome and exits by it."""
    workspace = a_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", BEFORE)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "talking", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        with following(workspace, "job", "logs", "-f", job_id) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "first\n"
            assert workspace.json("job", "show", job_id)["status"] == "running"
            (plugin / "go").touch()
            rest, _ = follower.communicate(timeout=PATIENCE)
        assert follower.returncode == 0
        assert "last" in rest
        assert rest.splitlines()[-1] == f"{job_id} succeeded (completed)"
        # A follower who comes after the end gets what is kept, and the same end.
        late = workspace.ductile("job", "logs", "-f", job_id)
        assert "  first\n" in late.out
        assert late.out.endswith(f"{job_id} succeeded (completed)\n")
        lines = workspace.ductile("job", "logs", "-f", job_id, "--json").out.splitlines()
        objects = [json.loads(line) for line in lines]
        assert [next(iter(each)) for each in objects] == ["execution", "job"]
    assert workspace.ductile("job", "logs", "-f", job_id).status == 0


def has_succeeded(events: list[dict[str, Any]]) -> bool:
    return any(event["data"].get("data", {}).get("to") == "succeeded" for event in events)


def output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "job.output"]


def test_the_stream_of_one_job_has_its_output(tmp_path: Path) -> None:
    """`job.output` without an id, characters whole, and only with the right to read jobs."""
    workspace = an_api_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", TALKING)
    with an_api(workspace) as api:
        job_id = api.post("/plugin/talking/poll")["job_id"]
        with EventReader(api, query=f"?job_id={job_id}", scope="*") as reader:
            seen = reader.wait_until(output)
            (plugin / "go").touch()
            seen = reader.wait_until(has_succeeded)
        with EventReader(api, query=f"?job_id={job_id}&after=0") as reader:  # may read events, and no jobs
            assert not output(reader.wait_until(has_succeeded))
        texts = [event["data"] for event in output(seen)]
        assert "".join(each["text"] for each in texts) == "café\nlast \x1b[31mline\n"
        assert [each["offset"] for each in texts] == [0, *(each["end"] for each in texts[:-1])]
        assert {(each["job_id"], each["execution"], each["stream"]) for each in texts} == {
            (job_id, 1, "stderr")
        }
        assert all(not event.get("id") for event in output(seen))


def test_a_run_shows_output_on_standard_error(tmp_path: Path) -> None:
    """With a daemon and without: standard output is the result alone."""
    workspace = a_workspace(tmp_path, "  talking: {}\n")
    plugin = workspace.plugin("talking", TALKING)
    (plugin / "go").touch()
    for daemon in (False, True):
        if daemon:
            with a_daemon(workspace):
                ran = workspace.ductile("run", "talking", "--follow")
        else:
            ran = workspace.ductile("run", "talking", "--follow")
        assert (ran.status, ran.out) == (0, "done\n")
        assert ran.err == "café\nlast \x1b[31mline\n"
    assert workspace.ductile("run", "talking").err == ""
    shown = workspace.terminal.on_screen("run", "talking", "--config", "demo", both=True)
    assert "last \\x1b[31mline" in shown


def test_truncated_stderr_is_told(tmp_path: Path) -> None:
    """The log of an execution says that more was printed than is kept."""
    workspace = a_workspace(tmp_path, "  noisy: {}\n")
    workspace.plugin("noisy", NOISY)
    job_id = workspace.json("run", "noisy")["job_id"]
    (execution,) = workspace.json("job", "logs", job_id)["executions"]
    assert execution["stderr_truncated"] is True
    assert len(execution["stderr"]) == 65536
    assert workspace.json("job", "show", job_id)["executions"][0]["stderr_truncated"] is True
    told = "more was printed on stderr than is kept"
    assert told in workspace.ductile("job", "logs", job_id).out
    assert told in workspace.ductile("job", "show", job_id).out.lower()
    other = workspace.json("run", "echo")["job_id"]
    assert workspace.json("job", "logs", other)["executions"][0]["stderr_truncated"] is False


def test_a_name_is_a_plugin_or_a_pipeline(tmp_path: Path) -> None:
    """`run` tries a plugin once, chooses its command by the payload, and runs a pipeline by its name."""
    workspace = a_workspace(tmp_path, "  broken: {}\npipelines:\n  - {name: hello, steps: [{uses: echo}]}\n")
    workspace.plugin("broken", "#!/bin/sh\ncat >/dev/null\nexit 3\n")
    assert workspace.json("run", "echo")["command"] == "poll"
    assert workspace.json("run", "echo", "--payload", "{}")["command"] == "handle"
    once = workspace.json("run", "broken", status=1)
    assert (once["status"], once["max_attempts"]) == ("dead", 1)
    with a_daemon(workspace):
        assert workspace.json("run", "broken", "--retry", "--no-wait")["status"] == "queued"
        left_to_the_daemon = workspace.json("run", "broken", "--no-wait")["job_id"]
        assert workspace.json("job", "show", left_to_the_daemon)["max_attempts"] == 4
        ran = workspace.json("run", "hello")
        assert (ran["plugin"], ran["command"], ran["status"]) == ("pipeline", "hello", "succeeded")
        refused = workspace.json("run", "hello", "poll", status=2)["error"]
        assert refused["message"] == "hello is a pipeline, which has no commands"
        assert workspace.json("run", "helo", status=1)["error"]["hint"] == "did you mean hello?"
    workspace.config.write_text(workspace.config.read_text().replace("name: hello", "name: echo"))
    assert workspace.ductile("config", "lock").status == 0
    both = workspace.ductile("run", "echo")
    assert both.out == "done\n"
    assert "note: echo is also the name of a pipeline: `ductile pipeline run echo" in both.err


def test_the_stdout_of_a_script_is_followed_too(tmp_path: Path) -> None:
    """What a script prints on either stream is shown while it runs, and kept at its end."""
    workspace = a_workspace(tmp_path, '  script: {run: "echo out; echo err >&2"}\n')
    ran = workspace.ductile("run", "script", "--follow")
    assert (ran.status, ran.out) == (0, "out\n")
    assert sorted(ran.err.splitlines()) == ["err", "out"]


@pytest.mark.parametrize("with_daemon", [False, True])
def test_a_terminal_shows_the_stdout_of_a_script_once(tmp_path: Path, with_daemon: bool) -> None:
    """It was shown while the script ran, so it is not repeated as the result; a pipe gets the result."""
    workspace = a_workspace(tmp_path, '  script: {run: "echo printed"}\n')
    with a_daemon(workspace) if with_daemon else nullcontext():
        shown = workspace.terminal.on_screen("run", "script", "--config", "demo", both=True)
        piped = workspace.ductile("run", "script")
    assert [line for line in shown if "printed" in line] == ["printed"]
    assert piped.out == "printed\n"


def test_without_a_daemon_the_output_of_other_jobs_is_labelled(tmp_path: Path) -> None:
    """The job, its steps and the jobs that it leads to run here; their lines are told apart."""
    workspace = a_workspace(
        tmp_path, "  source: {}\n  sink: {}\nroutes: [{from: source, event_type: found, to: sink}]\n"
    )
    answer = '{"status": "ok", "result": 1, "events": [{"type": "found", "payload": {}}]}'
    workspace.plugin("source", f"#!/bin/sh\ncat >/dev/null\necho from the first >&2\necho '{answer}'\n")
    workspace.plugin(
        "sink",
        '#!/bin/sh\ncat >/dev/null\necho from the second >&2\necho \'{"status": "ok", "result": 2}\'\n',
    )
    ran = workspace.ductile("run", "source", "--follow")
    other = workspace.json("job", "show", "last:sink")["job_id"]
    assert ran.err.splitlines() == ["from the first", f"[sink handle {other[-8:]}] from the second"]
