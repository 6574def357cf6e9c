"""The seal of a plugin whose files are being written. A configuration without a seal stays without one."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.file_io import lock_config_directory
from ductile.config.seal import read_checksums, write_checksums
from ductile.errors import file_error
from ductile.struct import replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def lock_configuration(directory: Path) -> Iterator[None]:
    """Keep other commands from changing this configuration and its plugins."""
    try:
        with lock_config_directory(directory):
            yield
    except OSError as error:
        raise file_error(f"cannot change {error.filename or directory}", error) from error


def seal_fingerprint(directory: Path, plugin: str, fingerprint: str | None) -> None:
    """Make this the only valid fingerprint of a plugin; None for no plugin of that name."""
    sealed = read_checksums(directory)
    if sealed is None:
        return
    plugins = {name: sealed_as for name, sealed_as in sealed.plugins.items() if name != plugin}
    plugins |= {} if fingerprint is None else {plugin: fingerprint}
    pending = {name: entry for name, entry in sealed.pending_plugins.items() if name != plugin}
    write_checksums(
        directory,
        replace(sealed, plugins=MappingProxyType(plugins), pending_plugins=MappingProxyType(pending)),
    )


def seal_pending(directory: Path, plugin: str, fingerprint: str | None) -> None:
    """Make this fingerprint, or none, valid beside the sealed one of a plugin until `seal_fingerprint`."""
    sealed = read_checksums(directory)
    if sealed is not None:
        pending = {name: entry for name, entry in sealed.pending_plugins.items() if name != plugin}
        pending |= {} if fingerprint is None else {plugin: fingerprint}
        write_checksums(directory, replace(sealed, pending_plugins=MappingProxyType(pending)))
