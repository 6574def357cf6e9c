"""Plugins are found under the roots, or refused with a reason."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builders.plugins import a_manifest, a_plugin
from ductile.config.snapshot import RefusedPlugin
from ductile.plugins.discovery import discover, load_plugin
from ductile.plugins.trust import RefusalCode, TrustPolicy

if TYPE_CHECKING:
    from pathlib import Path


def refusal_of(root: Path, name: str = "echo", *, allow_symlinks: bool = False) -> RefusedPlugin:
    discovery = discover([root], allow_symlinks=allow_symlinks)
    assert name not in discovery.installed
    return discovery.refused[name]


def follow_the_hint(refused: RefusedPlugin) -> None:
    """Run the commands of the hint."""
    assert refused.hint is not None
    subprocess.run(["/bin/sh", "-c", refused.hint], check=True)


def test_a_directory_with_a_manifest_is_a_plugin(tmp_path: Path) -> None:
    """The name in the manifest counts, not the name of the directory."""
    directory = a_plugin(tmp_path, "echo", directory="some-folder")
    discovery = discover([tmp_path])
    plugin = discovery.installed["echo"]
    assert plugin.directory == directory
    assert plugin.entrypoint == directory / "run.sh"
    assert plugin.root == tmp_path
    assert plugin.version == "1.0.0"
    assert not discovery.refused
    assert not discovery.warnings


def test_the_first_root_wins_and_later_copies_are_warnings(tmp_path: Path) -> None:
    """Roots are scanned in order."""
    own = a_plugin(tmp_path / "own", "echo")
    shipped = a_plugin(tmp_path / "shipped", "echo")
    discovery = discover([tmp_path / "own", tmp_path / "shipped"])
    assert discovery.installed["echo"].directory == own
    [warning] = discovery.warnings
    assert warning.file == str(shipped)
    assert str(own) in warning.message


def test_a_root_that_is_named_twice_is_scanned_once(tmp_path: Path) -> None:
    """Otherwise each plugin would be reported as a second copy."""
    a_plugin(tmp_path)
    assert discover([tmp_path, tmp_path]).warnings == ()


def test_one_bad_plugin_does_not_stop_the_others(tmp_path: Path) -> None:
    """Each directory is examined separately."""
    a_plugin(tmp_path, "bad", manifest="]")
    a_plugin(tmp_path, "good")
    discovery = discover([tmp_path])
    assert set(discovery.installed) == {"good"}
    assert set(discovery.refused) == {"bad"}


def test_a_good_copy_replaces_a_refused_one(tmp_path: Path) -> None:
    """The warning names the copy that is used."""
    a_plugin(tmp_path / "own", "echo", mode=0o644)
    shipped = a_plugin(tmp_path / "shipped", "echo")
    discovery = discover([tmp_path / "own", tmp_path / "shipped"])
    assert discovery.installed["echo"].directory == shipped
    assert not discovery.refused
    [warning] = discovery.warnings
    assert "not executable" in warning.message


def test_of_two_refused_copies_the_first_is_kept(tmp_path: Path) -> None:
    first = a_plugin(tmp_path / "a", "echo", mode=0o644)
    a_plugin(tmp_path / "b", "echo", script=None)
    discovery = discover([tmp_path / "a", tmp_path / "b"])
    assert discovery.refused["echo"].directory == first
    assert len(discovery.warnings) == 1


@pytest.mark.parametrize("telltale", ["run.py", "run.sh", "main.go", "manifest.yml"])
def test_a_plugin_without_manifest_is_a_warning(tmp_path: Path, telltale: str) -> None:
    """Otherwise its author edits a file that never runs."""
    (tmp_path / "forgotten").mkdir()
    (tmp_path / "forgotten" / telltale).write_text("")
    [warning] = discover([tmp_path]).warnings
    assert warning.file == str(tmp_path / "forgotten")
    assert ("rename manifest.yml" in (warning.hint or "")) == (telltale == "manifest.yml")


@pytest.mark.parametrize("folder", ["lib", ".git", "__pycache__", "notes"])
def test_other_directories_are_ignored(tmp_path: Path, folder: str) -> None:
    """`lib/` contains shared code."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / ("readme.md" if folder == "notes" else "run.py")).write_text("")
    assert discover([tmp_path]).warnings == ()


def test_a_missing_root_is_a_warning_and_the_others_are_scanned(tmp_path: Path) -> None:
    a_plugin(tmp_path / "there")
    discovery = discover([tmp_path / "gone", tmp_path / "there"])
    assert set(discovery.installed) == {"echo"}
    [warning] = discovery.warnings
    assert warning.key == "plugin_roots"
    assert warning.file == str(tmp_path / "gone")


class TestRefusals:
    """Each refusal has its own code, a message that names the file, and a hint."""

    def test_missing_entrypoint(self, tmp_path: Path) -> None:
        a_plugin(tmp_path, script=None)
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.ENTRYPOINT_MISSING
        assert "run.sh" in refused.reason

    def test_entrypoint_below_a_file(self, tmp_path: Path) -> None:
        a_plugin(tmp_path, manifest=a_manifest(entrypoint="run.sh/inner"))
        assert refusal_of(tmp_path).code == RefusalCode.ENTRYPOINT_MISSING

    def test_entrypoint_that_is_a_directory(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path, script=None)
        (directory / "run.sh").mkdir()
        assert refusal_of(tmp_path).code == RefusalCode.ENTRYPOINT_MISSING

    def test_entrypoint_that_is_not_executable(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path, mode=0o644)
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.ENTRYPOINT_NOT_EXECUTABLE
        assert refused.hint == f"chmod +x {directory / 'run.sh'}"

    @pytest.mark.parametrize("entrypoint", ["../run.sh", "bin/../../x", "/bin/sh", "..", "."])
    def test_entrypoint_outside_the_directory(self, tmp_path: Path, entrypoint: str) -> None:
        a_plugin(tmp_path, manifest=a_manifest(entrypoint=entrypoint))
        assert refusal_of(tmp_path).code == RefusalCode.ENTRYPOINT_OUTSIDE

    def test_dots_in_a_file_name_are_allowed(self, tmp_path: Path) -> None:
        """`..` is refused only as a step of the path; `run..sh` is an ordinary name."""
        directory = a_plugin(tmp_path, manifest=a_manifest(entrypoint="run..sh"))
        (directory / "run.sh").rename(directory / "run..sh")
        assert "echo" in discover([tmp_path]).installed

    @pytest.mark.parametrize(
        "relative_path", ["", "run.sh", "bin", "bin/run.sh", "manifest.yaml", "other.py", "deep/inside"]
    )
    def test_world_writable(self, tmp_path: Path, relative_path: str) -> None:
        """The plugin may load any of its files as code."""
        entrypoint = "bin/run.sh" if relative_path.startswith("bin") else "run.sh"
        directory = a_plugin(tmp_path, manifest=a_manifest(entrypoint=entrypoint))
        (directory / "bin").mkdir()
        (directory / "bin" / "run.sh").write_bytes((directory / "run.sh").read_bytes())
        (directory / "bin" / "run.sh").chmod(0o755)
        (directory / "other.py").touch(0o644)
        (directory / "deep" / "inside").mkdir(parents=True)
        (directory / relative_path).chmod(0o757)
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.WORLD_WRITABLE
        assert str(directory / relative_path) in refused.reason
        follow_the_hint(refused)
        assert "echo" in discover([tmp_path]).installed

    @pytest.mark.parametrize(("mode", "accepted"), [(0o777, False), (0o1777, False), (0o775, True)])
    def test_world_writable_root(self, tmp_path: Path, mode: int, *, accepted: bool) -> None:
        """A sticky root is refused too, because any user could add a plugin."""
        root = tmp_path / "a root"
        a_plugin(root)
        root.chmod(mode)
        discovery = discover([root])
        assert ("echo" in discovery.installed) is accepted
        if not accepted:
            assert discovery.refused["echo"].code == RefusalCode.WORLD_WRITABLE
            follow_the_hint(discovery.refused["echo"])
            assert "echo" in discover([root]).installed

    @pytest.mark.parametrize(("mode", "accepted"), [(0o777, False), (0o1777, True), (0o775, True)])
    def test_world_writable_directory_above_the_root(
        self, tmp_path: Path, mode: int, *, accepted: bool
    ) -> None:
        """In a sticky directory, such as /tmp, other users cannot replace the root."""
        a_plugin(tmp_path / "above" / "between" / "root")
        (tmp_path / "above").chmod(mode)
        discovery = discover([tmp_path / "above" / "between" / "root"])
        assert ("echo" in discovery.installed) is accepted
        if not accepted:
            reason = discovery.refused["echo"].reason
            assert reason == f"every user of this machine can change the directory {tmp_path / 'above'}"

    def test_permissions_are_checked_behind_links_on_the_path(self, tmp_path: Path) -> None:
        """Every directory that the system passes through counts."""
        a_plugin(tmp_path / "open" / "real" / "root")
        (tmp_path / "open").chmod(0o777)
        (tmp_path / "link").symlink_to("open/real")
        refused = refusal_of(tmp_path / "link" / "root")
        assert refused.code == RefusalCode.WORLD_WRITABLE
        assert str(tmp_path / "open") in refused.reason

    @pytest.mark.parametrize("relative_path", ["lib", "lib/shared.py"])
    def test_world_writable_shared_code(self, tmp_path: Path, relative_path: str) -> None:
        a_plugin(tmp_path, "echo", directory="other-name")
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "shared.py").touch(0o644)
        (tmp_path / relative_path).chmod(0o777)
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.WORLD_WRITABLE
        assert str(tmp_path / relative_path) in refused.reason

    def test_foreign_owner_of_a_directory_on_the_path(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path)
        policy = TrustPolicy(roots=(tmp_path,), owners={123_456_789})
        refused = load_plugin(directory, root=tmp_path, policy=policy)
        assert isinstance(refused, RefusedPlugin)
        assert refused.code == RefusalCode.FOREIGN_OWNER
        assert refused.reason.startswith("the directory / belongs to user ")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    @pytest.mark.parametrize("relative_path", ["..", "", "run.sh", "manifest.yaml", "other.py", "bin"])
    def test_foreign_owner_of_a_file(self, tmp_path: Path, relative_path: str) -> None:
        directory = a_plugin(tmp_path / "root")
        (directory / "bin").mkdir()
        (directory / "other.py").touch(0o644)
        path = (directory / relative_path).resolve()
        os.chown(path, 65534, -1)
        refused = refusal_of(tmp_path / "root")
        assert refused.code == RefusalCode.FOREIGN_OWNER
        assert str(path) in refused.reason
        assert "has to belong to root" in refused.reason
        follow_the_hint(refused)
        assert "echo" in discover([tmp_path / "root"]).installed

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_foreign_owner_of_a_link_on_the_path(self, tmp_path: Path) -> None:
        """In a sticky directory the owner of the link can redirect it later."""
        a_plugin(tmp_path / "real" / "root")
        (tmp_path / "link").symlink_to("real")
        os.chown(tmp_path / "link", 65534, -1, follow_symlinks=False)
        refused = refusal_of(tmp_path / "link" / "root")
        assert refused.code == RefusalCode.FOREIGN_OWNER
        assert f"the symbolic link {tmp_path / 'link'} belongs to" in refused.reason

    @pytest.mark.parametrize("protocol", ["1", "3"])
    def test_unsupported_protocol(self, tmp_path: Path, protocol: str) -> None:
        """The rest of such a manifest is not read, because it follows other rules."""
        a_plugin(tmp_path, manifest=f"name: echo\nprotocol: {protocol}\n")
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.PROTOCOL_UNSUPPORTED
        assert f"protocol {protocol}" in refused.reason

    def test_invalid_manifest_names_every_problem(self, tmp_path: Path) -> None:
        a_plugin(tmp_path, manifest=a_manifest(extra="timeout: soon\nconcurrency_safe: 3\n"))
        refused = refusal_of(tmp_path)
        assert refused.code == RefusalCode.MANIFEST_INVALID
        assert "line 8: timeout has to be a duration" in refused.reason
        assert 'line 9: concurrency_safe has to be true or false, not "3"' in refused.reason

    def test_manifest_that_is_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "echo" / "manifest.yaml").mkdir(parents=True)
        assert refusal_of(tmp_path).code == RefusalCode.UNREADABLE

    def test_manifest_that_is_a_pipe_is_not_opened(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path)
        (directory / "manifest.yaml").unlink()
        os.mkfifo(directory / "manifest.yaml")
        assert refusal_of(tmp_path).code == RefusalCode.UNREADABLE


class TestSymlinks:
    """A symbolic link is refused, unless links are allowed and the target is under a root."""

    def linked_plugin(self, tmp_path: Path, target_root: Path) -> Path:
        target = a_plugin(target_root)
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        (root / "echo").symlink_to(target)
        return root

    def test_linked_directory(self, tmp_path: Path) -> None:
        root = self.linked_plugin(tmp_path, tmp_path / "elsewhere")
        assert refusal_of(root).code == RefusalCode.SYMLINK

    def test_linked_manifest_is_not_read(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path / "root")
        (tmp_path / "secret").write_text("password: hunter2")
        (directory / "manifest.yaml").unlink()
        (directory / "manifest.yaml").symlink_to(tmp_path / "secret")
        refused = refusal_of(tmp_path / "root")
        assert refused.code == RefusalCode.SYMLINK
        assert "hunter2" not in refused.reason

    def test_linked_entrypoint(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path / "root")
        (directory / "run.sh").rename(directory / "real.sh")
        (directory / "run.sh").symlink_to("real.sh")
        assert refusal_of(tmp_path / "root").code == RefusalCode.SYMLINK

    def test_a_link_inside_the_plugin_that_is_not_used(self, tmp_path: Path) -> None:
        """A virtual environment contains many such links."""
        directory = a_plugin(tmp_path / "root")
        (directory / "python").symlink_to("/usr/bin/env")
        (directory / "nowhere").symlink_to("not-there")
        assert "echo" in discover([tmp_path / "root"]).installed

    def test_linked_root(self, tmp_path: Path) -> None:
        a_plugin(tmp_path / "real")
        (tmp_path / "root").symlink_to(tmp_path / "real")
        assert refusal_of(tmp_path / "root").code == RefusalCode.SYMLINK

    def test_allowed_inside_the_root_with_a_warning(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path)
        (directory / "run.sh").rename(directory / "real.sh")
        (directory / "run.sh").symlink_to("real.sh")
        discovery = discover([tmp_path], allow_symlinks=True)
        assert "echo" in discovery.installed
        [warning] = discovery.warnings
        assert warning.file == str(directory / "run.sh")

    def test_allowed_into_another_root(self, tmp_path: Path) -> None:
        root = self.linked_plugin(tmp_path, tmp_path / "other")
        discovery = discover([root, tmp_path / "other"], allow_symlinks=True)
        assert discovery.installed["echo"].directory == root / "echo"

    @pytest.mark.parametrize("relative_path", ["manifest.yaml", "run.sh", "."])
    def test_escaping_is_refused_even_when_symlinks_are_allowed(
        self, tmp_path: Path, relative_path: str
    ) -> None:
        outside = a_plugin(tmp_path / "outside")
        if relative_path == ".":
            (tmp_path / "root").mkdir()
            (tmp_path / "root" / "echo").symlink_to(outside)
        else:
            inside = a_plugin(tmp_path / "root")
            (inside / relative_path).unlink()
            (inside / relative_path).symlink_to(outside / relative_path)
        assert refusal_of(tmp_path / "root", allow_symlinks=True).code == RefusalCode.SYMLINK_ESCAPES

    def test_world_writable_directory_behind_a_link(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path)
        (tmp_path / "lib").mkdir()
        (directory / "run.sh").rename(tmp_path / "lib" / "run.sh")
        (directory / "run.sh").symlink_to("../lib/run.sh")
        assert "echo" in discover([tmp_path], allow_symlinks=True).installed
        (tmp_path / "lib").chmod(0o777)
        assert refusal_of(tmp_path, allow_symlinks=True).code == RefusalCode.WORLD_WRITABLE

    def test_a_link_to_nothing(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path / "root", script=None)
        (directory / "run.sh").symlink_to("nowhere")
        assert refusal_of(tmp_path / "root", allow_symlinks=True).code == RefusalCode.ENTRYPOINT_MISSING

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        directory = a_plugin(tmp_path / "root", script=None)
        (directory / "run.sh").symlink_to("run.sh")
        assert refusal_of(tmp_path / "root", allow_symlinks=True).code == RefusalCode.UNREADABLE
