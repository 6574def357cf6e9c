"""Backups overwrite nothing, and an archive is restored only if all of it is sound."""

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


def check_progress(activity: str, done: int, total: int) -> None:
    assert 0 <= done <= total, activity


def a_home(directory: Path, config: str = "") -> Path:
    """Return a configuration directory with a file of variables, a plugin and a store with one job."""
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


def open_home(home: Path) -> OpenedConfiguration:
    return open_configuration(home / "config.yaml", {}, seal=SealMode.IGNORE)


def create_backup(
    home: Path, target: Path, files: StoreFunctions | None = None, **options: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "parts": frozenset(BackupPart),
        "include_secrets": False,
        "now": START,
    } | options
    return back_up(
        open_home(home), BackupRequest(target=target, **fields), files or store_files(), check_progress
    )


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
    response = create_backup(home, tmp_path / "b.tar.gz")
    assert response["files"]["plugins"] == 3
    restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), check_progress)
    assert (tmp_path / "new" / file).read_bytes() == script.read_bytes()
    assert os.access(tmp_path / "new" / file, os.X_OK)


def test_a_script_from_elsewhere_is_listed_as_left_out(tmp_path: Path) -> None:
    """The script may be a program of the system. Commands that are found by PATH are not listed."""
    script = a_script(tmp_path / "elsewhere" / "backup.sh")
    home = a_home_with_scripts(tmp_path, night=str(script), again=f"{script} --full", day="echo hello")
    response = create_backup(home, tmp_path / "b.tar.gz", include_secrets=True)
    assert (response["left_out"], response["files"]["plugins"]) == ([str(script)], 2)


def test_a_script_that_names_the_store_does_not_have_it_copied_twice(tmp_path: Path) -> None:
    home = a_home_with_scripts(tmp_path, size="wc -c data/state.db")
    create_backup(home, tmp_path / "b.tar.gz")
    assert names_in(tmp_path / "b.tar.gz").count("inside/data/state.db") == 1
    assert create_backup(home, tmp_path / "c.tar.gz")["files"] == {"config": 1, "state": 1, "plugins": 2}


def test_a_restore_brings_back_the_same_files(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    response = create_backup(home, target, include_secrets=True)
    assert target.stat().st_mode & 0o777 == 0o600
    assert names_in(target)[0] == MANIFEST
    assert response["files"] == {"config": 2, "state": 1, "plugins": 2}
    verified = verify(target, store_files(), check_progress)
    assert (verified["sound"], verified["files"]) == (True, 5)
    restore(target, tmp_path / "new", store_files(), check_progress)
    before, after = files_below(home), files_below(tmp_path / "new")
    for name in ("config.yaml", ".env", "plugins/echo/run.sh", "plugins/echo/manifest.yaml"):
        assert after[name] == before[name]
    transient = {"plugins/echo/__pycache__/x.pyc", "data/state.db-wal", "data/state.db-shm"}
    assert set(after) == {*before} - transient
    assert (tmp_path / "new" / "plugins" / "echo" / "run.sh").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home", "new"]


def test_a_restored_store_is_not_taken_for_its_original(tmp_path: Path) -> None:
    """The id of a store identifies its processes, so two copies of one archive are two stores."""
    home = a_home(tmp_path)
    create_backup(home, tmp_path / "b.tar.gz")
    directories = [home, tmp_path / "one", tmp_path / "two"]
    for directory in directories[1:]:
        restore(tmp_path / "b.tar.gz", directory, store_files(), check_progress)
        assert sorted(file.name for file in (directory / "data").iterdir()) == ["state.db"]

    async def read_ids() -> list[str]:
        store_ids = []
        for directory in directories:
            for _ in range(2):  # the id is created once and stored
                store = open_sqlite_store(directory / "data" / "state.db", clock=Clock(), rng=Random())
                store_ids.append(store.store_id)
                await store.close()
        return store_ids

    first_id, reread_id, *other_ids = asyncio.run(read_ids())
    assert first_id == reread_id
    assert len({first_id, *other_ids}) == len(directories)


def test_files_of_variables_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """A backup has no secrets by default, also if the plugin root is the whole directory."""
    home = a_home(tmp_path, "plugin_roots: [., ./plugins]\n")
    response = create_backup(home, tmp_path / "b.tar.gz")
    assert response["left_out"] == [str(home / ".env")]
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        contents = [stream.read() for info in archive if (stream := archive.extractfile(info))]
    assert not any(SECRET.encode() in content for content in contents)


def test_only_the_parts_that_are_wanted(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    create_backup(home, tmp_path / "c.tar.gz", parts=parse_parts("config"))
    assert names_in(tmp_path / "c.tar.gz") == [MANIFEST, "inside/config.yaml"]
    create_backup(home, tmp_path / "s.tar.gz", parts=parse_parts("state"))
    assert names_in(tmp_path / "s.tar.gz") == [MANIFEST, "inside/data/state.db"]
    assert parse_parts(None) == frozenset(BackupPart)
    for wrong in ("", "everything", "config,else"):
        with pytest.raises(UsageError, match="no such part"):
            parse_parts(wrong)


def test_into_a_directory_it_gets_a_name_with_its_time(tmp_path: Path) -> None:
    response = create_backup(a_home(tmp_path), tmp_path, parts=parse_parts("config"))
    assert response["path"] == str(tmp_path / "ductile-20260208T100000Z.tar.gz")


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    target.write_text("precious")
    with pytest.raises(ConflictError, match="not overwritten"):
        create_backup(home, target)
    assert target.read_text() == "precious"
    target.unlink()
    create_backup(home, target)
    with pytest.raises(ConflictError, match="is not empty"):
        restore(target, home, store_files(), check_progress)
    with pytest.raises(ConflictError, match="is not empty"):
        restore(target, None, store_files(), check_progress, known_directories=[home])
    for known in ([], [tmp_path / "other"], [home / "below"]):
        with pytest.raises(RefusedError, match="as its place"):
            restore(target, None, store_files(), check_progress, known_directories=known)
    with pytest.raises(ConflictError, match="is not a directory"):
        restore(target, target, store_files(), check_progress)


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    """A file that another process creates meanwhile is not overwritten."""
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    real = store_files()

    def copy(source: StateLocation, copy_path: Path, progress: BackupProgress) -> None:
        target.write_text("precious")
        real.copy(source, copy_path, progress)

    with pytest.raises(ConflictError, match="not overwritten"):
        create_backup(home, target, replace(real, copy=copy))
    assert target.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_trying_writes_nothing(tmp_path: Path) -> None:
    """`--dry-run` writes nothing."""
    home = a_home(tmp_path)
    target = tmp_path / "b.tar.gz"
    assert create_backup(home, target, dry_run=True)["written"] is False
    assert not target.exists()
    create_backup(home, target)
    assert restore(target, tmp_path / "new", store_files(), check_progress, dry_run=True)["restored"] is False
    assert not (tmp_path / "new").exists()


def test_files_from_outside_are_kept_apart(tmp_path: Path) -> None:
    home = a_home(tmp_path, "include: [../shared.yaml]\n")
    (tmp_path / "shared.yaml").write_text("service: {name: other}\n")
    create_backup(home, tmp_path / "b.tar.gz")
    response = restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), check_progress)
    directory = tmp_path / "new" / "outside" / (tmp_path / "shared.yaml").relative_to("/")
    assert response["outside"] == [{"from": str(tmp_path / "shared.yaml"), "to": str(directory)}]
    assert directory.read_text() == "service: {name: other}\n"


def test_links_to_directories_are_named_and_not_followed(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    (home / "plugins" / "linked").symlink_to(tmp_path / "elsewhere")
    response = create_backup(home, tmp_path / "b.tar.gz", parts=parse_parts("plugins"))
    assert response["left_out"] == [str(home / "plugins" / "linked")]
    assert not [name for name in names_in(tmp_path / "b.tar.gz") if "secret" in name]


# ------------------------------------------------------------------------- archives that were tampered with


def rewrite_archive(path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Path:
    """Return a copy of the archive with changed contents, in the given order."""
    with tarfile.open(path) as archive:
        contents = {info.name: stream.read() for info in archive if (stream := archive.extractfile(info))}
    target = path.with_name("tampered.tar.gz")
    with tarfile.open(target, "w:gz") as archive:
        for name, content in change(contents).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target


def edit_manifest(contents: dict[str, bytes], change: Callable[[Any], object]) -> dict[str, bytes]:
    manifest = json.loads(contents[MANIFEST])
    change(manifest)
    return contents | {MANIFEST: json.dumps(manifest).encode()}


def rename_main_file(name: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(contents: dict[str, bytes]) -> dict[str, bytes]:
        new_contents = {name if old == "inside/config.yaml" else old: data for old, data in contents.items()}

        def rename(manifest: Any) -> None:
            for entry in manifest["files"]:
                if entry["name"] == "inside/config.yaml":
                    entry["name"] = name

        return edit_manifest(new_contents, rename)

    return change


TAMPERED: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "another byte": lambda members: (
        members | {"inside/config.yaml": b"#" + members["inside/config.yaml"][1:]}
    ),
    "more bytes": lambda members: members | {"inside/config.yaml": members["inside/config.yaml"] + b"#"},
    "a file that is not listed": lambda members: members | {"inside/extra": b""},
    "a file that is gone": lambda members: {
        name: data for name, data in members.items() if name != "inside/config.yaml"
    },
    "no manifest": lambda members: {name: data for name, data in members.items() if name != MANIFEST},
    "the manifest is not first": lambda members: {"inside/config.yaml": b"", **members},
    "a manifest that is no JSON": lambda members: members | {MANIFEST: b"{"},
    "a manifest of another shape": lambda members: members | {MANIFEST: b'{"format": 1, "files": 3}'},
    "another format": lambda members: edit_manifest(members, lambda manifest: manifest.update(format=2)),
    "a way out": rename_main_file("inside/../../escaped"),
    "an absolute name": rename_main_file("/escaped"),
    "the directory itself": rename_main_file("inside/./x"),
    "a manifest that nests": lambda members: members | {MANIFEST: b"[" * 2_000_000},
    "a prefix that leads out": lambda members: edit_manifest(
        members, lambda manifest: manifest.update(prefix="../..")
    ),
    "a manifest of many names": lambda members: edit_manifest(
        members,
        lambda manifest: manifest["files"].extend(
            manifest["files"][0] | {"name": f"inside/{'n' * 50}{number}"} for number in range(20_000)
        ),
    ),
    "a very long name": lambda members: {**members, "x" * 900_000: b""},
}


@pytest.mark.parametrize("tampering", TAMPERED)
def test_an_archive_that_was_tampered_with_is_refused(tmp_path: Path, tampering: str) -> None:
    """Verify and restore both refuse the archive, and no file is left inside or outside the directory."""
    home = a_home(tmp_path)
    create_backup(home, tmp_path / "b.tar.gz")
    tampered = rewrite_archive(tmp_path / "b.tar.gz", TAMPERED[tampering])
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(tampered, store_files(), check_progress)
    with pytest.raises(RefusedError, match="is not a whole backup") as excinfo:
        restore(tampered, tmp_path / "new", store_files(), check_progress)
    assert len(excinfo.value.message) < 500 + len(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home", "tampered.tar.gz"]


def test_links_and_devices_in_an_archive_are_refused(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    create_backup(home, tmp_path / "b.tar.gz", parts=parse_parts("config"))
    tampered = tmp_path / "tampered.tar.gz"
    with tarfile.open(tmp_path / "b.tar.gz") as archive, tarfile.open(tampered, "w:gz") as target:
        member = archive.next()
        assert member is not None
        target.addfile(member, archive.extractfile(member))
        link = tarfile.TarInfo("inside/config.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        target.addfile(link)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        restore(tampered, tmp_path / "new", store_files(), check_progress)


def an_extended_header(kind: bytes, size: int) -> bytes:
    """Return a header that declares the next `size` bytes as a description of the file after it."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("first", [True, False])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path, kind: bytes, *, first: bool) -> None:
    """A small archive can declare a header of any size; the header is refused before it is read."""
    create_backup(a_home(tmp_path), tmp_path / "b.tar.gz", parts=parse_parts("config"))
    with gzip.open(tmp_path / "b.tar.gz") as stream:
        content = stream.read()
    size = 64 * 1024 * 1024
    header = an_extended_header(kind, size)
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        manifest = archive.next()
        assert manifest is not None
        end = manifest.offset_data + -(-manifest.size // 512) * 512
    offset = 0 if first else end
    with gzip.open(tmp_path / "bad.tar.gz", "wb", compresslevel=1) as tampered:
        tampered.write(content[:offset] + header)
        for _ in range(64):
            tampered.write(b"x" * (size // 64))
        tampered.write(content[offset:])
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="a header is larger than 1 MiB"):
            restore(tmp_path / "bad.tar.gz", tmp_path / "new", store_files(), check_progress)
        assert tracemalloc.get_traced_memory()[1] < size // 4
    finally:
        tracemalloc.stop()


def test_headers_before_headers_without_an_end_are_refused(tmp_path: Path) -> None:
    pax = an_extended_header(tarfile.XHDTYPE, 512) + b"10 path=xx\n".ljust(512, b"\0")
    with gzip.open(tmp_path / "bad.tar.gz", "wb") as tampered:
        tampered.write(pax * 5000)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(tmp_path / "bad.tar.gz", store_files(), check_progress)


def test_a_restore_needs_room(tmp_path: Path) -> None:
    """A restore checks the free space before it unpacks a file."""
    create_backup(a_home(tmp_path), tmp_path / "b.tar.gz")

    def enlarge_file(manifest: Any) -> None:
        manifest["files"][0]["size"] = 1 << 60

    tampered = rewrite_archive(tmp_path / "b.tar.gz", lambda members: edit_manifest(members, enlarge_file))
    with pytest.raises(ConflictError, match="MiB free"):
        restore(tampered, tmp_path / "new", store_files(), check_progress)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08cut off"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(RefusedError, match="is not a whole backup"):
        verify(tmp_path / "b.tar.gz", store_files(), check_progress)
    with pytest.raises(RefusedError, match="there is no file"):
        verify(tmp_path / "nowhere", store_files(), check_progress)


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    create_backup(a_home(tmp_path), tmp_path / "b.tar.gz")
    content = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(RefusedError, match="is not a whole backup"):
        restore(tmp_path / "b.tar.gz", tmp_path / "new", store_files(), check_progress)
    assert not (tmp_path / "new").exists()


def test_a_store_that_is_damaged_inside_a_whole_archive_is_found(tmp_path: Path) -> None:
    """The hash is right, because the damaged file was backed up. Opening the store shows the damage."""
    home = a_home(tmp_path)
    real = store_files()

    def copy_badly(source: StateLocation, copy_path: Path, progress: BackupProgress) -> None:
        real.copy(source, copy_path, progress)
        data = bytearray(copy_path.read_bytes())
        data[4096:12288] = os.urandom(8192)
        copy_path.write_bytes(data)

    create_backup(home, tmp_path / "b.tar.gz", replace(real, copy=copy_badly))
    with pytest.raises(StoreError, match="damaged"):
        verify(tmp_path / "b.tar.gz", real, check_progress)


def test_a_file_that_changes_while_it_is_backed_up_stops_it(tmp_path: Path) -> None:
    """A file is hashed first and written later, so a change between the two is detected."""
    home = a_home(tmp_path)
    changing_files = iter([home / "plugins" / "echo" / "run.sh"])

    def change_script(activity: str, done: int, total: int) -> None:
        check_progress(activity, done, total)
        if activity == "writing the archive" and (path := next(changing_files, None)) is not None:
            path.write_text("#!/bin/sh\n")

    request = BackupRequest(
        target=tmp_path / "b.tar.gz", parts=frozenset(BackupPart), include_secrets=False, now=START
    )
    with pytest.raises(ConflictError, match=r"run\.sh was changed while it was being backed up"):
        back_up(open_home(home), request, store_files(), change_script)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no directory"):
        create_backup(a_home(tmp_path), tmp_path / "nowhere" / "b.tar.gz")
