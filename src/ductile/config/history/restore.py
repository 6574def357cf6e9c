"""Finds the files of an earlier sealed configuration, and what has to be written to restore them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ductile.config.history.file_changes import present_hash
from ductile.config.history.file_copies import read_copy
from ductile.config.history.seal_log import UNSEALED, SealRecord, configuration_id, list_seals
from ductile.config.read.includes import load_config_files
from ductile.config.seal import is_copied, read_checksums, relative_name
from ductile.errors import ConflictError, NotFoundError, RefusedError, UsageError, file_error

#: Digits of an id that are enough to name it, if no other one begins with them.
MIN_ID_DIGITS = 4


def read_seals(directory: Path) -> tuple[SealRecord, ...]:
    """Return the sealed configurations, oldest first. Raises DeniedError if this user may not read them."""
    try:
        return list_seals(directory)
    except OSError as error:
        raise file_error(f"cannot read the history in {error.filename or directory}", error) from error


def sealed_id(directory: Path) -> str | None:
    """Return the id of the files in the present seal, None without one. Raises IntegrityError."""
    sealed = read_checksums(directory)
    return (
        None if sealed is None else configuration_id({name: file.hash for name, file in sealed.files.items()})
    )


def find_seal(records: Sequence[SealRecord], prefix: str | None, *, present: str | None) -> SealRecord:
    """Return the newest record whose id begins with a prefix; without one, that before the present seal.

    Raises NotFoundError, or UsageError for a prefix of several ids.
    """
    if prefix is None:
        earlier = [record for record in records if record.id != present and record.command != UNSEALED]
        if not earlier:
            raise NotFoundError(
                "there is no earlier sealed configuration",
                hint="`ductile config history` lists what there is.",
            )
        return earlier[-1]
    matching = (
        [record for record in records if record.id.startswith(prefix)] if len(prefix) >= MIN_ID_DIGITS else []
    )
    ids = {record.id for record in matching}
    if len(ids) > 1:
        raise UsageError(f"{prefix} is the beginning of several ids: {', '.join(sorted(ids))}")
    if not matching:
        raise NotFoundError(
            f"no sealed configuration with the id {prefix} is kept",
            hint="`ductile config history` lists what there is.",
        )
    return matching[-1]


def find_restorable(directory: Path, prefix: str | None) -> SealRecord:
    """Return the sealed configuration to restore. Raises as `find_seal` and `read_seals` do."""
    return find_seal(read_seals(directory), prefix, present=sealed_id(directory))


def plan_restore(config_file: Path, record: SealRecord, *, keep_env: bool) -> dict[str, bytes | None]:
    """Return the contents to write so that the files are those of a record; None for one to remove.

    Raises RefusedError if a content is not kept, ConflictError if an environment file has changed, of which
    no content is ever kept.
    """
    directory = config_file.parent
    contents: dict[str, bytes | None] = {}
    for name, content_hash in record.files.items():
        if present_hash(directory, name) == content_hash:
            continue
        if not is_copied(name):
            if not keep_env:
                raise ConflictError(
                    f"{name} was changed since {record.id} was sealed, and the content of environment files "
                    "is not kept",
                    hint=f"Restore {name} by hand first, or use it as it is now with --keep-env.",
                    details={"file": name},
                )
            continue
        data = read_copy(directory, content_hash)
        if data is None:
            raise RefusedError(
                f"the content that {name} had in {record.id} is no longer kept, so it cannot be restored",
                hint="Restore it from a backup, then run `ductile apply`.",
            )
        contents[name] = data
    overlay = {directory / name: data for name, data in contents.items()}
    for file in load_config_files(config_file, overlay).files:
        name = relative_name(directory, file.path)
        if name not in record.files:  # a newer file in an included directory
            contents[name] = None
    return contents
