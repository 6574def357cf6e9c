"""A second process that uses a store on PostgreSQL: it runs verbs while this process runs others."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Self

from builders.jobs import FIRST_ID, Clock, some_rng
from builders.postgres import store_url
from builders.verbs import VERBS, PopulatedStore
from ductile.errors import StoreError
from ductile.store.postgres.store import open_postgres_store

_READY, _DONE = "ready", "done"


class OtherProcess:
    """Runs one verb at a time on a store object of its own."""

    def __enter__(self) -> Self:
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            (sys.executable, "-m", "builders.verb_worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tests, FIRST_ID: "1000000000"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipes and waits for its end
            pass

    def prepare(self, directory: Path, populated: PopulatedStore, verb: str) -> None:
        """Open the store of this directory in the other process, for a verb on these jobs."""
        jobs = (populated.running, populated.queued, populated.ended)
        message = pickle.dumps((store_url(directory), populated.clock.now, jobs, verb))
        assert self._ask(base64.b64encode(message).decode()) == _READY

    def run(self) -> None:
        """Run the verb to its end. Raises `StoreError` if the verb raised it."""
        response = self._ask("go")
        if response != _DONE:
            raise StoreError(response)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def _answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _serve(message: str) -> str:
    url, now, (running, queued, ended), verb = pickle.loads(base64.b64decode(message))  # noqa: S301 - of our test
    clock = Clock(now)
    store = open_postgres_store(url, clock=clock, rng=some_rng(2))
    try:
        _answer(_READY)
        sys.stdin.readline()
        await VERBS[verb](
            PopulatedStore(store=store, clock=clock, running=running, queued=queued, ended=ended)
        )
    except StoreError as error:
        return repr(error).replace("\n", " ")
    finally:
        await store.close()
    return _DONE


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        _answer(asyncio.run(_serve(line)))
