"""The ends of many processes, told through one descriptor."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterator

import pytest

from ductile.runner.process.exit_watcher import ExitWatcher

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")


@pytest.fixture
async def exits() -> Iterator[ExitWatcher]:  # type: ignore[misc]  # pytest-asyncio takes the loop from it
    made = ExitWatcher(asyncio.get_running_loop(), lambda: None)
    yield made
    made.close()


def watch(exits: ExitWatcher, descriptor: int, tell: Callable[[], object]) -> None:
    exits.arm(descriptor)
    exits.add_reader(descriptor, tell)  # type: ignore[arg-type]


class Ending:
    """A descriptor that can be read when the test says so, as that of a process that has ended."""

    def __init__(self) -> None:
        self.descriptor, self._other = os.pipe()
        self.told = asyncio.Queue[str]()

    def come(self) -> None:
        os.write(self._other, b"x")

    def tell(self) -> None:
        self.told.put_nowait("ended")

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._other)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_each_is_told_once(exits: ExitWatcher) -> None:
    """Though nobody has read it yet: what is left of its group may take a while to clear."""
    endings = [Ending() for _ in range(3)]
    for ending in endings:
        watch(exits, ending.descriptor, ending.tell)
    for ending in endings[1:]:
        ending.come()
    for ending in endings[1:]:
        assert await asyncio.wait_for(ending.told.get(), 20) == "ended"
    await turns()
    assert all(ending.told.empty() for ending in endings)
    exits.remove_reader(endings[0].descriptor)
    for ending in endings:
        ending.close()


async def test_who_was_told_wakes_the_loop_no_more(exits: ExitWatcher) -> None:
    """Its descriptor can still be read; a loop that is told again and again would never rest."""
    ending = Ending()
    watch(exits, ending.descriptor, ending.tell)
    ending.come()
    await asyncio.wait_for(ending.told.get(), 20)
    assert select.select([ending.descriptor], [], [], 0)[0]
    assert not select.select([exits._epoll.fileno()], [], [], 0)[0]
    ending.close()


async def test_who_has_ended_before_is_told_too(exits: ExitWatcher) -> None:
    ending = Ending()
    ending.come()
    watch(exits, ending.descriptor, ending.tell)
    assert await asyncio.wait_for(ending.told.get(), 20) == "ended"
    ending.close()


async def test_whose_end_is_known_before_its_start_is_told_as_soon_as_somebody_asks() -> None:
    """It was started in another thread, which has yet to say so."""
    asked = asyncio.Queue[bool]()
    early, running = Ending(), Ending()
    made = ExitWatcher(asyncio.get_running_loop(), lambda: asked.put_nowait(made.is_early(early.descriptor)))
    for ending in (early, running):
        made.arm(ending.descriptor)
    early.come()
    assert await asyncio.wait_for(asked.get(), 20), "whoever hands it over now can see that it is early"
    made.add_reader(early.descriptor, early.tell)
    assert early.told.get_nowait() == "ended"
    assert not made.is_early(early.descriptor), "its number can be used again"
    made.add_reader(running.descriptor, running.tell)
    assert running.told.empty()
    running.come()
    assert await asyncio.wait_for(running.told.get(), 20) == "ended"
    made.close()
    early.close()
    running.close()


async def test_one_that_fails_keeps_nobody_else_waiting(exits: ExitWatcher) -> None:
    """It would hang until its deadline: an end is told once."""
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["exception"]))
    bad, good = Ending(), Ending()
    watch(exits, bad.descriptor, lambda: 1 / 0)
    watch(exits, good.descriptor, good.tell)
    bad.come()
    good.come()
    assert await asyncio.wait_for(good.told.get(), 20) == "ended"
    await turns()
    assert [type(each) for each in complaints] == [ZeroDivisionError]
    bad.close()
    good.close()


async def test_who_is_taken_off_is_not_told_and_the_number_can_be_used_again(exits: ExitWatcher) -> None:
    first, last = Ending(), Ending()
    watch(exits, first.descriptor, first.tell)
    number = first.descriptor
    exits.remove_reader(number)
    first.come()
    watch(exits, last.descriptor, last.tell)
    last.come()
    assert await asyncio.wait_for(last.told.get(), 20) == "ended"
    assert first.told.empty()
    os.dup2(last.descriptor, number)
    watch(exits, number, first.tell)
    assert await asyncio.wait_for(first.told.get(), 20) == "ended"
    first.close()
    last.close()
