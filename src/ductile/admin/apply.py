"""`ductile apply`: what differs from the seal, and sealing exactly that."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.config.kept_files import FileDifference, compare_with_kept
from ductile.config.load import SealMode
from ductile.config.seal import Checksums, read_checksums, write_shown_seal
from ductile.errors import IntegrityError, file_error
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class SealPlan(Value):
    """The configuration on disk, which is valid, and how it differs from what was sealed."""

    directory: Path
    checksums: Checksums
    files: tuple[FileDifference, ...]
    #: Plugins whose files are not as sealed, by name.
    plugins: tuple[str, ...]
    needed: bool

    def write(self) -> None:
        """Seal it. ConflictError if a file was changed since the plan was made."""
        try:
            write_shown_seal(self.directory, self.checksums)
        except OSError as error:
            raise file_error(f"cannot seal {error.filename or self.directory}", error) from error


def plan_seal(config_path: str | None, environ: Mapping[str, str]) -> SealPlan:
    """Check the configuration on disk and compare it with the seal. ConfigError if it cannot be used."""
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    directory, now = opened.loaded.directory, opened.snapshot.checksums
    before = None
    with suppress(IntegrityError):  # a seal that cannot be read is replaced
        before = read_checksums(directory)
    sealed = before or Checksums()
    changed = [name for name, file in now.files.items() if sealed.files.get(name) != file]
    gone = [name for name in sealed.files if name not in now.files]
    differences = [
        compare_with_kept(directory, name, sealed.files[name].hash if name in sealed.files else None)
        for name in changed
    ]
    names = {*now.plugins, *sealed.plugins}
    plugins = tuple(sorted(name for name in names if now.plugins.get(name) != sealed.plugins.get(name)))
    return SealPlan(
        directory=directory,
        checksums=now,
        files=tuple(differences),
        plugins=plugins,
        needed=before is None or bool(changed or gone or plugins) or now.strict != sealed.strict,
    )
