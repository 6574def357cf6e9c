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
    from typing import Any

_KEY_BYTES = 32


class Chance:
    """Notices who is seeded, and with what, while modules are preloaded.

    A finder of modules, for one of them: to import `random` for servers that do not need it would make
    each of their processes slower.
    """

    def __init__(self) -> None:
        self._unseeded: dict[int, Any] = {}
        self._kind: Any = None
        self._seed: Any = None

    def watch(self) -> None:
        if "random" in sys.modules:
            self._notice(sys.modules["random"])
        else:
            finders: list[Any] = sys.meta_path
            finders.insert(0, self)

    def stop_watching(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._kind is not None:
            self._kind.seed = self._seed

    def renew(self) -> None:
        """In the forked process."""
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

            def run(module: Any) -> None:
                del loader.exec_module  # there is the usual one behind it
                loader.exec_module(module)
                self._notice(module)

            loader.exec_module = run
        return spec

    def _notice(self, module: Any) -> None:
        kind = self._kind = module.Random
        seed = self._seed = kind.seed

        def noticed(generator: Any, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            self._unseeded.pop(id(generator), None)
            if a is None:
                self._unseeded[id(generator)] = generator

        kind.seed = noticed
