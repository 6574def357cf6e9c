"""Commands on a full or read-only disk: their errors and exit statuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from builders.disks import on_a_disk

INIT = "ductile init disk/c >/dev/null || exit 98\n"
FULL = "the disk is full"
#: Makes `echo` a plugin that fills the disk and returns more than the store keeps free for itself.
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
    ("words", "path"),
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
def test_a_full_disk_is_said_to_be_full(words: str, path: str, tmp_path: Path) -> None:
    """The command exits with 75 and names the file that it was to write, not a temporary one."""
    result = on_a_disk(tmp_path, f"{INIT}fill\nductile {words}\n")
    assert result.status == 75, result
    assert result.err.startswith("error: ")
    assert FULL in result.err
    (named_path,) = [word.rstrip(":") for word in result.err.split() if path in word]
    assert not Path(named_path).name.startswith("..")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("run echo --config disk/c", "disk/c/data"),
        ("token create ci --config disk/c", "disk/c/.checksums"),
        ("config set service.log_level warn --config disk/c", "disk/c/config.yaml"),
        ("plugin new mine --dir disk", "disk/mine"),
    ],
)
def test_a_disk_that_may_not_be_written_to_is_a_refusal(words: str, path: str, tmp_path: Path) -> None:
    """The command exits with 77 and names the file as well."""
    result = on_a_disk(tmp_path, f"{INIT}mount -o remount,ro disk\nductile {words}\n")
    assert result.status == 77, result
    assert f"{path}" in result.err
    assert "Read-only file system" in result.err


#: Probes a daemon on the disk before the disk is full, while it is full, and when there is room again.
PROBED = """
import json, sys
from pathlib import Path
from builders.http import an_api, an_api_workspace

disk = Path("disk").absolute()
with an_api(an_api_workspace(disk)) as api:
    probes = []
    def probe():
        health, ready = api.ask("GET", "/healthz"), api.ask("GET", "/readyz")
        probes.append([health.status, health.body["status"], ready.status, ready.body["message"]])
    probe()
    with Path("disk/filling").open("wb", buffering=0) as filling:
        try:
            while filling.write(bytes(4096)):
                pass
        except OSError:
            pass
    body = {"payload": {"x": "y" * 50_000}}
    for _ in range(1000):
        response = api.ask("POST", "/plugin/echo/handle", body)
        if response.status != 202:
            break
    assert response.code == "store_full", response
    probe()
    Path("disk/filling").unlink()
    probe()
    api.post("/plugin/echo/handle", body)
    json.dump(probes, sys.stdout)
"""


def test_probes_say_that_the_disk_is_full(tmp_path: Path) -> None:
    """Probes report the full disk after a refused write, and notice free room without a submission."""
    (tmp_path / "probed.py").write_text(PROBED)
    tests = Path(__file__).parents[1]
    result = on_a_disk(tmp_path, f"PYTHONPATH={tests} {sys.executable} probed.py", kib=8000)
    assert result.status == 0, result
    well, full = "All is well.", "The disk is full: new work is refused."
    assert json.loads(result.out) == [
        [200, "ok", 200, well],
        [200, "full", 503, full],
        [200, "ok", 200, well],
    ]


def test_a_start_on_a_full_disk_promises_nothing(tmp_path: Path) -> None:
    """The error does not say that a daemon continues by itself, since none is left."""
    result = on_a_disk(tmp_path, f"{INIT}fill\nductile system start --config disk/c\n")
    assert result.status == 75, result
    assert "by itself" not in result.err
    assert "Free some space, then try again." in result.err


def test_a_run_that_fills_the_disk_says_so_and_names_its_job(tmp_path: Path) -> None:
    """The command exits with 75 soon instead of waiting for ever; the store has the job, as running."""
    result = on_a_disk(
        tmp_path,
        f"{INIT}{GREEDY}ductile run echo --json --config disk/c\nstatus=$?\nrm disk/filling\n"
        "ductile job list --json --config disk/c >jobs.json\nexit $status\n",
        kib=6000,
    )
    assert result.status == 75, result
    error = json.loads(result.out)["error"]
    assert error["code"] == "store_full"
    (job,) = json.loads((tmp_path / "jobs.json").read_text())["jobs"]
    assert error["details"] == {"job_id": job["job_id"]}
    assert job["job_id"] in error["message"]
    assert job["status"] == "running"
