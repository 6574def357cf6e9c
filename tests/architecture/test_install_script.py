"""`tools/install.py`, with a stand-in for pip that only prints what pip prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = (
    "one==1 \\\n    --hash=sha256:00\ntwo==2 ; sys_platform == 'win32' \\\n    --hash=sha256:00\nthree==3\n"
)
PIP = """\
import sys
if "--editable" in sys.argv:
    print("Obtaining file:///checkout")
    print("Installing collected packages: ductile-runtime")
else:
    print("Ignoring two: markers 'sys_platform == \\"win32\\"' don't match your environment")
    print("Collecting one==1 (from -r some.lock (line 1))")
    print("Requirement already satisfied: three==3 in /somewhere")
    {outcome}
"""


def install(directory: Path, outcome: str) -> subprocess.CompletedProcess[str]:
    (directory / "pip").mkdir()
    (directory / "pip" / "__init__.py").touch()
    (directory / "pip" / "__main__.py").write_text(PIP.format(outcome=outcome))
    (directory / "some.lock").write_text(LOCK)
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "install.py", "some.lock"],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_each_phase_is_a_line_where_there_is_no_terminal(tmp_path: Path) -> None:
    process = install(tmp_path, 'print("Installing collected packages: one, three")')
    assert process.returncode == 0
    fetching, installing, last_phase, end = process.stdout.splitlines()
    assert (fetching, installing, last_phase) == (
        "Fetching packages",
        "Installing 2 packages",
        "Installing Ductile",
    )
    assert end.startswith("Installed 2 packages and Ductile in ")
    assert process.stderr == ""


def test_what_pip_says_is_shown_if_it_fails(tmp_path: Path) -> None:
    """The script ends with the exit status of pip, so that `make` stops."""
    process = install(tmp_path, 'sys.exit("ERROR: no matching distribution found for one==1")')
    assert process.returncode == 1
    assert "ERROR: no matching distribution found for one==1" in process.stderr
    assert "Installed" not in process.stdout
