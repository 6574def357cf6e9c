"""What was drawn by chance before the fork, and must not be the same in every process after it.

Belongs to `server` and, like it, is standard library only. Python itself renews the generator behind
`random.random()`; here it is those that preloaded modules have made, unless they were given a seed: whoever
gives one wants the same numbers each time.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_KEY_BYTES = 32


class Chance:
    def __init__(self) -> None:
        self._unseeded: dict[int, Any] = {}
        self._forget: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """From now on notice who is seeded, and with what."""
        import random  # noqa: PLC0415 - only where something is preloaded

        kind: Any = random.Random
        seed = kind.seed

        def noticed(generator: Any, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            self._unseeded.pop(id(generator), None)
            if a is None:
                self._unseeded[id(generator)] = generator

        def forget() -> None:
            kind.seed = seed

        kind.seed = noticed
        self._forget = forget

    def stop_watching(self) -> None:
        self._forget()

    def renew(self) -> None:
        """In the forked process."""
        for generator in self._unseeded.values():
            generator.seed()
        multiprocessing: Any = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None:
            multiprocessing.current_process().authkey = os.urandom(_KEY_BYTES)
