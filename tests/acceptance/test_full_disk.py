"""A disk without room, or one that may not be written to: what is said, and with which status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from builders.disks import on_a_disk

INIT = "ductile init disk/c >/dev/null || exit 98\n"
FULL = "the disk is full"
#: Makes `echo` a plugin that leaves no room, and answers with more than the store keeps free for itself.
GREEDY = r"""
rm disk/c/plugins/echo/*.py
cat >disk/c/plugins/echo/run.sh <<'END'
#!/bin/sh
cat >/dev/null
dd if=/dev/zero of=disk/filling bs=1k 2>/dev/null
printf '{"status": "ok", "result": "%s"}' "$(head -c 2000000 /dev/zero | tr '\0' x)"
END
chmod 755 disk/c/plugins/echo/run.sh
sed -i 's/^entrypoint:.*/entrypoint: run.sh/' disk/c/plugins/echo/manifest.yaml
ductile config lock --config disk/c >/dev/null || exit 97
"""


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run echo --config disk/c", "disk/c/data"),
        ("system start --config disk/c", "disk/c/data"),
        ("token create ci --config disk/c", "disk/c/"),
        ("config set service.log_level warn --config disk/c", "disk/c/config.yaml"),
        ("config lock --config disk/c", "disk/c/.checksums"),
        ("plugin new mine --dir disk", "disk/mine"),
        ("init disk/d", "disk/d"),
        ("system backup disk/b.tar.gz --config disk/c", "disk/b.tar.gz"),
    ],
)
def test_a_full_disk_is_said_to_be_full(words: str, names: str, tmp_path: Path) -> None:
    """Exit 75, naming the file that was to be written and no temporary one."""
    ran = on_a_disk(tmp_path, f"{INIT}fill\nductile {words}\n")
    assert ran.status == 75, ran
    assert ran.err.startswith("error: ")
    assert FULL in ran.err
    (named,) = [word.rstrip(":") for word in ran.err.split() if names in word]
    assert not Path(named).name.startswith("..")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run echo --config disk/c", "disk/c/data"),
        ("token create ci --config disk/c", "disk/c/.checksums"),
        ("config set service.log_level warn --config disk/c", "disk/c/config.yaml"),
        ("plugin new mine --dir disk", "disk/mine"),
    ],
)
def test_a_disk_that_may_not_be_written_to_is_a_refusal(words: str, names: str, tmp_path: Path) -> None:
    """Exit 77, with the same names."""
    ran = on_a_disk(tmp_path, f"{INIT}mount -o remount,ro disk\nductile {words}\n")
    assert ran.status == 77, ran
    assert f"{names}" in ran.err
    assert "Read-only file system" in ran.err


#: A daemon on the disk, asked before it is full, while it is, and when there is room again.
PROBED = """
import json, sys
from pathlib import Path
from builders.http import an_api, an_api_place

disk = Path("disk").absolute()
with an_api(an_api_place(disk)) as api:
    said = []
    def probe():
        health, ready = api.ask("GET", "/healthz"), api.ask("GET", "/readyz")
        said.append([health.status, health.body["status"], ready.status, ready.body["message"]])
    probe()
    with Path("disk/filling").open("wb", buffering=0) as filling:
        try:
            while filling.write(bytes(4096)):
                pass
        except OSError:
            pass
    body = {"payload": {"x": "y" * 50_000}}
    for _ in range(1000):
        answer = api.ask("POST", "/plugin/echo/handle", body)
        if answer.status != 202:
            break
    assert answer.code == "store_full", answer
    probe()
    Path("disk/filling").unlink()
    probe()
    api.post("/plugin/echo/handle", body)
    json.dump(said, sys.stdout)
"""


def test_probes_say_that_the_disk_is_full(tmp_path: Path) -> None:
    """While the last write was refused; with room again it is noticed without a submission."""
    (tmp_path / "probed.py").write_text(PROBED)
    tests = Path(__file__).parents[1]
    ran = on_a_disk(tmp_path, f"PYTHONPATH={tests} {sys.executable} probed.py", kib=8000)
    assert ran.status == 0, ran
    well, full = "All is well.", "The disk is full: new work is refused."
    assert json.loads(ran.out) == [
        [200, "ok", 200, well],
        [200, "full", 503, full],
        [200, "ok", 200, well],
    ]


def test_a_start_on_a_full_disk_promises_nothing(tmp_path: Path) -> None:
    """No daemon is left that could go on by itself."""
    ran = on_a_disk(tmp_path, f"{INIT}fill\nductile system start --config disk/c\n")
    assert ran.status == 75, ran
    assert "by itself" not in ran.err
    assert "Free some space, then try again." in ran.err


def test_a_run_that_fills_the_disk_says_so_and_names_its_job(tmp_path: Path) -> None:
    """Exit 75 after a moment, not a wait without end; the store has the job, as running."""
    ran = on_a_disk(
        tmp_path,
        f"{INIT}{GREEDY}ductile run echo --json --config disk/c\nstatus=$?\nrm disk/filling\n"
        "ductile job list --json --config disk/c >jobs.json\nexit $status\n",
        kib=6000,
    )
    assert ran.status == 75, ran
    error = json.loads(ran.out)["error"]
    assert error["code"] == "store_full"
    (job,) = json.loads((tmp_path / "jobs.json").read_text())["jobs"]
    assert error["details"] == {"job_id": job["job_id"]}
    assert job["job_id"] in error["message"]
    assert job["status"] == "running"
