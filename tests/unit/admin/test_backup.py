"""Backups: nothing is overwritten, nothing of an archive is believed, all of it or nothing."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.configs import a_config
from builders.jobs import START, Clock, a_new_job, some_rng
from builders.plugins import a_plugin
from builders.stores import accept
from ductile.admin.backup.archive import MANIFEST
from ductile.admin.backup.create import (
    BackupPart,
    BackupProgress,
    BackupRequest,
    StoreFunctions,
    back_up,
    parse_parts,
)
from ductile.admin.backup.restore import restore, verify
from ductile.admin.config import OpenedConfiguration, open_configuration
from ductile.config.load import SealMode
from ductile.config.snapshot import StateLocation
from ductile.errors import ConflictError, NotFoundError, RefusedError, StoreError, UsageError
from ductile.offline import store_files
from ductile.store.sqlite.store import open_sqlite_store
from ductile.struct import replace

SECRET = "canary-7f3a"


def quiet(what: str, done: int, of: int) -> None:
    assert 0 <= done <= of, what


def a_home(directory: Path, config: str = "") -> Path:
    """A configuration with a file of variables, a plugin and a store with one job."""
    home = directory / "home"
    a_plugin(home / "plugins", "echo")
    (home / "plugins" / "echo" / "__pycache__").mkdir()
    (home / "plugins" / "echo" / "__pycache__" / "x.pyc").touch()
    (home / ".env").write_text(f"KEY={SECRET}\n")
    a_config(home, f"environment_vars: {{include: [.env]}}\nplugins: {{echo: {{}}}}\n{config}")

    async def fill() -> None:
        store = open_sqlite_store(home / "data" / "state.db", clock=Clock(), rng=some_rng())
        await accept(store, a_new_job())
        await store.close()

    asyncio.run(fill())
    return home


def opened(home: Path) -> OpenedConfiguration:
    return open_configuration(home / "config.yaml", {}, seal=SealMode.IGNORE)


def saved(home: Path, target: Path, files: StoreFunctions | None = None, **wanted: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"parts": frozenset(BackupPart), "include_secrets": False, "now": START} | wanted
    return back_up(opened(home), BackupRequest(target=target, **given), files or store_files(), quiet)


def names_in(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def a_script(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\necho saved\n")
    path.chmod(0o755)
    return path


def a_home_with_scripts(directory: Path, **runs: str) -> Path:
    home = a_home(directory)
    rows = "".join(f"  {name}: {{run: {run}}}\n" for name, run in runs.items())
    a_config(home, f"environment_vars: {{include: [.env]}}\nplugins:\n  echo: {{}}\n{rows}")
    return home


@pytest.mark.parametrize(
    ("run", "file"),
    [
        ("./backup.sh --full", "backup.sh"),
        ('"./backup.sh | tee log"', "backup.sh"),
        ("[sh, backup.sh, config.yaml]", "backup.sh"),
        ("sh jobs/nightly.sh", "jobs/nightly.sh"),
        ('"sh jobs/nightly.sh > log"', "jobs/nightly.sh"),
    ],
)
def test_a_backup_has_the_scripts_of_the_configuration(tmp_path: Path, run: str, file: str) -> None:
    """A script beside the configuration is restored with it, and can be executed as before."""
    home = a_home_with_scripts(tmp_path, night=run)
    script = a_script(home / file)
    done = saved(home, tmp_path / "b.tar.gz")
    assert done["files"]["plugins"] == 3
    restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), quiet)
    assert (tmp_path / "new" / file).read_bytes() == script.read_bytes()
    assert os.access(tmp_path / "new" / file, os.X_OK)


def test_a_script_from_elsewhere_is_listed_as_left_out(tmp_path: Path) -> None:
    """It may be a program of the system. Commands that are found by PATH are not listed."""
    script = a_script(tmp_path / "elsewhere" / "backup.sh")
    home = a_home_with_scripts(tmp_path, night=str(script), again=f"{script} --full", day="echo hello")
    done = saved(home, tmp_path / "b.tar.gz", include_secrets=True)
    assert (done["left_out"], done["files"]["plugins"]) == ([str(script)], 2)


def test_a_script_that_names_the_store_does_not_have_it_copied_twice(tmp_path: Path) -> None:
    home = a_home_with_scripts(tmp_path, size="wc -c data/state.db")
    saved(home, tmp_path / "b.tar.gz")
    assert names_in(tmp_path / "b.tar.gz").count("inside/data/state.db") == 1
    assert saved(home, tmp_path / "c.tar.gz")["files"] == {"config": 1, "state": 1, "plugins": 2}


def test_a_restore_brings_back_the_same_files(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    done = saved(home, target, include_secrets=True)
    assert target.stat().st_mode & 0o777 == 0o600
    assert names_in(target)[0] == MANIFEST
    assert done["files"] == {"config": 2, "state": 1, "plugins": 2}
    verified = verify(target, store_files(), quiet)
    assert (verified["sound"], verified["files"]) == (True, 5)
    restore(target, tmp_path / "new", store_files(), quiet)
    before, after = files_below(home), files_below(tmp_path / "new")
    for name in ("config.yaml", ".env", "plugins/echo/run.sh", "plugins/echo/manifest.yaml"):
        assert after[name] == before[name]
    passing = {"plugins/echo/__pycache__/x.pyc", "data/state.db-wal", "data/state.db-shm"}
    assert set(after) == {*before} - passing
    assert (tmp_path / "new" / "plugins" / "echo" / "run.sh").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home", "new"]


def test_a_restored_store_is_not_taken_for_its_original(tmp_path: Path) -> None:
    """By its id processes are found; two copies of one archive are two stores as well."""
    home = a_home(tmp_path)
    saved(home, tmp_path / "b.tar.gz")
    places = [home, tmp_path / "one", tmp_path / "two"]
    for place in places[1:]:
        restore(tmp_path / "b.tar.gz", place, store_files(), quiet)
        assert sorted(file.name for file in (place / "data").iterdir()) == ["state.db"]

    async def ids() -> list[str]:
        found = []
        for place in places:
            for _ in range(2):  # made once, and kept
                store = open_sqlite_store(place / "data" / "state.db", clock=Clock(), rng=Random())
                found.append(store.store_id)
                await store.close()
        return found

    first, again, *others = asyncio.run(ids())
    assert first == again
    assert len({first, *others}) == len(places)


def test_files_of_variables_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """Secrets go nowhere by themselves, not even where the plugin root is the whole directory."""
    home = a_home(tmp_path, "plugin_roots: [., ./plugins]\n")
    done = saved(home, tmp_path / "b.tar.gz")
    assert done["left_out"] == [str(home / ".env")]
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        contents = [stream.read() for info in archive if (stream := archive.extractfile(info))]
    assert not any(SECRET.encode() in content for content in contents)


def test_only_the_parts_that_are_wanted(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    saved(home, tmp_path / "c.tar.gz", parts=parse_parts("config"))
    assert names_in(tmp_path / "c.tar.gz") == [MANIFEST, "inside/config.yaml"]
    saved(home, tmp_path / "s.tar.gz", parts=parse_parts("state"))
    assert names_in(tmp_path / "s.tar.gz") == [MANIFEST, "inside/data/state.db"]
    assert parse_parts(None) == frozenset(BackupPart)
    for wrong in ("", "everything", "config,else"):
        with pytest.raises(UsageError, match="no such part"):
            parse_parts(wrong)


def test_into_a_directory_it_gets_a_name_with_its_time(tmp_path: Path) -> None:
    done = saved(a_home(tmp_path), tmp_path, parts=parse_parts("config"))
    assert done["path"] == str(tmp_path / "ductile-20260208T100000Z.tar.gz")


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    target.write_text("precious")
    with pytest.raises(ConflictError, match="not overwritten"):
        saved(home, target)
    assert target.read_text() == "precious"
    target.unlink()
    saved(home, target)
    with pytest.raises(ConflictError, match="is not empty"):
        restore(target, home, store_files(), quiet)
    with pytest.raises(ConflictError, match="is not empty"):
        restore(target, None, store_files(), quiet, known_directories=[home])
    for known in ([], [tmp_path / "other"], [home / "below"]):
        with pytest.raises(RefusedError, match="as its place"):
            restore(target, None, store_files(), quiet, known_directories=known)
    with pytest.raises(ConflictError, match="is not a directory"):
        restore(target, target, store_files(), quiet)


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    """A file that another process creates meanwhile is not overwritten."""
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    real = store_files()

    def copy(source: StateLocation, copied: Path, progress: BackupProgress) -> None:
        target.write_text("precious")
        real.copy(source, copied, progress)

    with pytest.raises(ConflictError, match="not overwritten"):
        saved(home, target, replace(real, copy=copy))
    assert target.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_trying_writes_nothing(tmp_path: Path) -> None:
    """--dry-run."""
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    assert saved(home, target, dry_run=True)["written"] is False
    assert not target.exists()
    saved(home, target)
    assert restore(target, tmp_path / "new", store_files(), quiet, dry_run=True)["restored"] is False
    assert not (tmp_path / "new").exists()


def test_files_from_outside_are_kept_apart(tmp_path: Path) -> None:
    home = a_home(tmp_path, "include: [../shared.yaml]\n")
    (tmp_path / "shared.yaml").write_text("service: {name: other}\n")
    saved(home, tmp_path / "b.tar.gz")
    done = restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), quiet)
    directory = tmp_path / "new" / "outside" / (tmp_path / "shared.yaml").relative_to("/")
    assert done["outside"] == [{"from": str(tmp_path / "shared.yaml"), "to": str(directory)}]
    assert directory.read_text() == "service: {name: other}\n"


def test_links_to_directories_are_named_and_not_followed(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    (home / "plugins" / "linked").symlink_to(tmp_path / "elsewhere")
    done = saved(home, tmp_path / "b.tar.gz", parts=parse_parts("plugins"))
    assert done["left_out"] == [str(home / "plugins" / "linked")]
    assert not [name for name in names_in(tmp_path / "b.tar.gz") if "secret" in name]


# ------------------------------------------------------------------------- archives that were tampered with


def rewritten(path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Path:
    """The archive with other contents, in the order given."""
    with tarfile.open(path) as archive:
        contents = {info.name: stream.read() for info in archive if (stream := archive.extractfile(info))}
    target = path.with_name("tampered.tar.gz")
    with tarfile.open(target, "w:gz") as archive:
        for name, content in change(contents).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target


def with_manifest(contents: dict[str, bytes], change: Callable[[Any], object]) -> dict[str, bytes]:
    manifest = json.loads(contents[MANIFEST])
    change(manifest)
    return contents | {MANIFEST: json.dumps(manifest).encode()}


def renamed(name: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(contents: dict[str, bytes]) -> dict[str, bytes]:
        moved = {name if old == "inside/config.yaml" else old: data for old, data in contents.items()}

        def rename(manifest: Any) -> None:
            for entry in manifest["files"]:
                if entry["name"] == "inside/config.yaml":
                    entry["name"] = name

        return with_manifest(moved, rename)

    return change


TAMPERED: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "another byte": lambda all_: all_ | {"inside/config.yaml": b"#" + all_["inside/config.yaml"][1:]},
    "more bytes": lambda all_: all_ | {"inside/config.yaml": all_["inside/config.yaml"] + b"#"},
    "a file that is not listed": lambda all_: all_ | {"inside/extra": b""},
    "a file that is gone": lambda all_: {
        name: data for name, data in all_.items() if name != "inside/config.yaml"
    },
    "no manifest": lambda all_: {name: data for name, data in all_.items() if name != MANIFEST},
    "the manifest is not first": lambda all_: {"inside/config.yaml": b"", **all_},
    "a manifest that is no JSON": lambda all_: all_ | {MANIFEST: b"{"},
    "a manifest of another shape": lambda all_: all_ | {MANIFEST: b'{"format": 1, "files": 3}'},
    "another format": lambda all_: with_manifest(all_, lambda manifest: manifest.update(format=2)),
    "a way out": renamed("inside/../../escaped"),
    "an absolute name": renamed("/escaped"),
    "the directory itself": renamed("inside/./x"),
    "a manifest that nests": lambda all_: all_ | {MANIFEST: b"[" * 2_000_000},
    "a prefix that leads out": lambda all_: with_manifest(
        all_, lambda manifest: manifest.update(prefix="../..")
    ),
    "a manifest of many names": lambda all_: with_manifest(
        all_,
        lambda manifest: manifest["files"].extend(
            manifest["files"][0] | {"name": f"inside/{'n' * 50}{number}"} for number in range(20_000)
        ),
    ),
    "a very long name": lambda all_: {**all_, "x" * 900_000: b""},
}


@pytest.mark.parametrize("what", TAMPERED)
def test_an_archive_that_was_tampered_with_is_refused(tmp_path: Path, what: str) -> None:
    """Verified and restored alike; nothing is left behind, inside or outside."""
    home = a_home(tmp_path)
    saved(home, tmp_path / "b.tar.gz")
    bad = rewritten(tmp_path / "b.tar.gz", TAMPERED[what])
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(bad, store_files(), quiet)
    with pytest.raises(RefusedError, match="is not a whole backup") as refused:
        restore(bad, tmp_path / "new", store_files(), quiet)
    assert len(refused.value.message) < 500 + len(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home", "tampered.tar.gz"]


def test_links_and_devices_in_an_archive_are_refused(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    saved(home, tmp_path / "b.tar.gz", parts=parse_parts("config"))
    bad = tmp_path / "tampered.tar.gz"
    with tarfile.open(tmp_path / "b.tar.gz") as archive, tarfile.open(bad, "w:gz") as target:
        first = archive.next()
        assert first is not None
        target.addfile(first, archive.extractfile(first))
        link = tarfile.TarInfo("inside/config.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        target.addfile(link)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        restore(bad, tmp_path / "new", store_files(), quiet)


def an_extended_header(kind: bytes, size: int) -> bytes:
    """A header that says that the next so many bytes describe the file after it."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("first", [True, False])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path, kind: bytes, *, first: bool) -> None:
    """A small archive can hold one of any size; it is refused before it is read."""
    saved(a_home(tmp_path), tmp_path / "b.tar.gz", parts=parse_parts("config"))
    with gzip.open(tmp_path / "b.tar.gz") as unpacked:
        whole = unpacked.read()
    size = 64 * 1024 * 1024
    header = an_extended_header(kind, size)
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        manifest = archive.next()
        assert manifest is not None
        end = manifest.offset_data + -(-manifest.size // 512) * 512
    at = 0 if first else end
    with gzip.open(tmp_path / "bad.tar.gz", "wb", compresslevel=1) as bad:
        bad.write(whole[:at] + header)
        for _ in range(64):
            bad.write(b"x" * (size // 64))
        bad.write(whole[at:])
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="a header is larger than 1 MiB"):
            restore(tmp_path / "bad.tar.gz", tmp_path / "new", store_files(), quiet)
        assert tracemalloc.get_traced_memory()[1] < size // 4
    finally:
        tracemalloc.stop()


def test_headers_before_headers_without_an_end_are_refused(tmp_path: Path) -> None:
    pax = an_extended_header(tarfile.XHDTYPE, 512) + b"10 path=xx\n".ljust(512, b"\0")
    with gzip.open(tmp_path / "bad.tar.gz", "wb") as bad:
        bad.write(pax * 5000)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(tmp_path / "bad.tar.gz", store_files(), quiet)


def test_a_restore_needs_room(tmp_path: Path) -> None:
    """What it takes is said before anything is unpacked."""
    saved(a_home(tmp_path), tmp_path / "b.tar.gz")

    def grow(manifest: Any) -> None:
        manifest["files"][0]["size"] = 1 << 60

    bad = rewritten(tmp_path / "b.tar.gz", lambda all_: with_manifest(all_, grow))
    with pytest.raises(ConflictError, match="MiB free"):
        restore(bad, tmp_path / "new", store_files(), quiet)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08cut off"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(tmp_path / "b.tar.gz", store_files(), quiet)
    with pytest.raises(RefusedError, match="there is no file"):
        verify(tmp_path / "nowhere", store_files(), quiet)


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    saved(a_home(tmp_path), tmp_path / "b.tar.gz")
    whole = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RefusedError, match="is not a whole backup"):
        restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), quiet)
    assert not (tmp_path / "new").exists()


def test_a_store_that_is_damaged_inside_a_whole_archive_is_found(tmp_path: Path) -> None:
    """Its hash is right: it was backed up like that. Opening it shows the damage."""
    home = a_home(tmp_path)
    real = store_files()

    def copy_badly(source: StateLocation, copied: Path, progress: BackupProgress) -> None:
        real.copy(source, copied, progress)
        data = bytearray(copied.read_bytes())
        data[4096:12288] = os.urandom(8192)
        copied.write_bytes(data)

    saved(home, tmp_path / "b.tar.gz", replace(real, copy=copy_badly))
    with pytest.raises(StoreError, match="damaged"):
        verify(tmp_path / "b.tar.gz", real, quiet)


def test_a_file_that_changes_while_it_is_backed_up_stops_it(tmp_path: Path) -> None:
    """Hashed first and written then: what is in between must not pass for the same."""
    home = a_home(tmp_path)
    grown = iter([home / "plugins" / "echo" / "run.sh"])

    def grow(what: str, done: int, of: int) -> None:
        quiet(what, done, of)
        if what == "writing the archive" and (path := next(grown, None)) is not None:
            path.write_text("#!/bin/sh\n")

    wanted = BackupRequest(
        target=tmp_path / "b.tar.gz", parts=frozenset(BackupPart), include_secrets=False, now=START
    )
    with pytest.raises(ConflictError, match=r"run\.sh was changed while it was being backed up"):
        back_up(opened(home), wanted, store_files(), grow)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no directory"):
        saved(a_home(tmp_path), tmp_path / "nowhere" / "b.tar.gz")
