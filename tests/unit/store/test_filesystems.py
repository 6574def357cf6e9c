"""Network filesystems are refused by the type in the list of mounts of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ductile.errors import StoreError
from ductile.store.sqlite.connection import NETWORK_FILESYSTEMS, filesystem_of, refuse_network_filesystem

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /home rw,relatime shared:13 - btrfs /dev/vdb rw
31 30 0:40 / /home/me/far rw,relatime shared:20 master:3 - nfs4 server:/export rw
32 22 0:41 / /with\040space rw - cifs //server/share rw
33 22 0:42 / /twice rw - ext4 /dev/vdc rw
34 22 0:43 / /twice rw - fuse.sshfs host: rw
35 22 0:44 / /données rw - nfs server:/x rw
garbage
36 22 0:45
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/ductile/state.db", "ext4"),
        ("/home/me/state.db", "btrfs"),
        ("/home/me/far/state.db", "nfs4"),
        ("/home/me/farther/state.db", "btrfs"),
        ("/with space/state.db", "cifs"),
        ("/twice/state.db", "fuse.sshfs"),
        ("/home/me/far", "nfs4"),
    ],
)
def test_the_longest_mount_point_above_a_path_decides(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_a_mount_point_is_utf8() -> None:
    assert filesystem_of(Path("/données/state.db"), MOUNTS) == "nfs"


def test_a_symlink_does_not_hide_a_network_filesystem(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path}/far rw - nfs4 server:/x rw\n"
    with pytest.raises(StoreError):
        refuse_network_filesystem(tmp_path / "near" / "state.db", mounts)


def test_without_a_list_of_mounts_nothing_is_known() -> None:
    assert filesystem_of(Path("/x"), "") is None


@pytest.mark.parametrize("kind", sorted(NETWORK_FILESYSTEMS))
def test_every_network_filesystem_is_refused_with_a_way_out(kind: str) -> None:
    with pytest.raises(StoreError) as excinfo:
        refuse_network_filesystem(Path("/data/state.db"), f"1 0 0:1 / / rw - {kind} server rw")
    assert kind in excinfo.value.message
    assert "state.path" in (excinfo.value.hint or "")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_filesystems_are_accepted(kind: str) -> None:
    refuse_network_filesystem(Path("/data/state.db"), f"1 0 0:1 / / rw - {kind} /dev/x rw")
