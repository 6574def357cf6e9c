"""What a running daemon does not know and the configuration on disk does: somebody forgot the reload."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ductile.errors import DuctileError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ductile.cli.invocation import Invocation
    from ductile.config.snapshot import Snapshot

_FORGOTTEN = "The configuration on disk has it, but the daemon has not loaded it: ductile reload"


@contextmanager
def hint_reload(call: Invocation, find: Callable[[Snapshot], object]) -> Iterator[None]:
    """`find` looks in a configuration for what was asked for, and raises as the daemon does if it is not
    there. Without a daemon nothing comes of it: the same configuration has been asked.
    """
    try:
        yield
    except NotFoundError as missing:
        _look_on_disk(call, missing, find)
        raise


def _look_on_disk(call: Invocation, missing: NotFoundError, find: Callable[[Snapshot], object]) -> None:
    from ductile.admin.config import open_configuration  # noqa: PLC0415 - only for mistakes

    try:
        find(open_configuration(call.config, call.environ).snapshot)
    except NotFoundError as same:
        missing.message, missing.hint = same.message, same.hint  # installed by now, or misspelt
    except RefusedError as refused:
        missing.hint = f"On disk, which the daemon has not loaded, {refused.message}."
    except DuctileError:  # what is wrong with it is for `config check` and the reload to say
        return
    else:
        missing.hint = _FORGOTTEN


def find_command(snapshot: Snapshot, plugin: str, command: str | None) -> object:
    """As a submission looks for it."""
    from ductile.operations.jobs.submit import default_command, runnable_plugin  # noqa: PLC0415
    from ductile.operations.plugins.catalogue import known_command  # noqa: PLC0415 - as above

    found = runnable_plugin(snapshot, plugin)
    return known_command(found, command or default_command(found))


def find_pipeline(snapshot: Snapshot, name: str) -> object:
    from ductile.operations.runs.start import known_pipeline  # noqa: PLC0415 - as above

    return known_pipeline(snapshot, name)
