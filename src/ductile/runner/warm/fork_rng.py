"""Reseeds random generators after the fork, so that processes do not all draw the same numbers.

Part of the fork server and, like it, standard library only. Python itself reseeds the generator behind
`random.random()`. This module handles generators that preloaded modules have created, except those that were
given a seed, which are meant to repeat.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEY_BYTES = 32


class RngTracker:
    """Notices which generators are created without a seed while modules are preloaded.

    Also a finder of modules that waits for `random` to be imported: importing it for servers that do not need
    it would make each of their processes slower.
    """

    def __init__(self) -> None:
        self._unseeded: dict[int, Any] = {}
        self._class: Any = None
        self._seed: Any = None

    def start(self) -> None:
        if "random" in sys.modules:
            self._replace_seed(sys.modules["random"])
        else:
            finders: list[Any] = sys.meta_path
            finders.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._class is not None:
            self._class.seed = self._seed

    def reseed(self) -> None:
        """Called in the forked process."""
        for generator in self._unseeded.values():
            generator.seed()
        multiprocessing: Any = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None:
            multiprocessing.current_process().authkey = os.urandom(_KEY_BYTES)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "random":
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = spec and spec.loader
        if loader is not None and not isinstance(loader, type):

            def exec_module(module: Any) -> None:
                del loader.exec_module  # uncovers the method of the class
                loader.exec_module(module)
                self._replace_seed(module)

            loader.exec_module = exec_module
        return spec

    def _replace_seed(self, module: Any) -> None:
        self._class = module.Random
        original = self._seed = self._class.seed

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            original(generator, a, version)
            self._unseeded.pop(id(generator), None)
            if a is None:
                self._unseeded[id(generator)] = generator

        self._class.seed = seed
