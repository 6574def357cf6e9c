"""A hint at `ductile reload`, if the configuration on disk has what the running daemon does not know."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ductile.errors import DuctileError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ductile.cli.invocation import Invocation
    from ductile.config.snapshot import Snapshot


@contextmanager
def hint_reload(call: Invocation, find: Callable[[Snapshot], object]) -> Iterator[None]:
    """Improve the hint of a NotFoundError by looking for the same thing in the configuration on disk.

    `find` raises as the operation does if the configuration does not have it. Without a daemon the operation
    has read the same configuration, so the error stays as it is.
    """
    try:
        yield
    except NotFoundError as missing:
        from ductile.admin.config import open_configuration

        try:
            find(open_configuration(call.config, call.environ).snapshot)
        except NotFoundError as same:
            missing.message, missing.hint = same.message, same.hint  # installed by now, or misspelt
        except RefusedError as refused:
            missing.hint = f"On disk, which the daemon has not loaded, {refused.message}."
        except DuctileError:  # `config check` and the reload report what is wrong with it
            pass
        else:
            missing.hint = (
                "The configuration on disk has it, but the daemon has not loaded it: ductile reload"
            )
        raise
