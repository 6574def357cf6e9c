"""Who may pass: what is remembered of earlier callers decides nothing (SPEC 8.1)."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.scheduling import a_snapshot
from ductile.api.access import Gatekeeper
from ductile.api.endpoint import Access, Endpoint, Reply, Route
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken, Snapshot
from ductile.errors import DeniedError
from ductile.value import replace

SCOPES = ("echo:ro", "echo:rw", "plugin:rw", "jobs:ro")
NAMES = st.sampled_from(["echo", "fetch", "poll"])
PATHS = st.fixed_dictionaries({"plugin": NAMES, "command": NAMES})
HELD = st.lists(st.sampled_from(SCOPES), max_size=2).map(tuple)


async def _answer(_asked: object) -> Reply:
    return Reply(body={})


def _by_plugin(_snapshot: Snapshot, path: Mapping[str, str]) -> tuple[str, ...]:
    return (f"{path['plugin']}:rw", "plugin:rw")


def _by_configuration(snapshot: Snapshot, path: Mapping[str, str]) -> tuple[str, ...]:
    return (f"{path['command']}:ro", *snapshot.service.name.split())


ENDPOINTS = tuple(
    Endpoint(method="GET", path="/", summary="", access=access, handler=_answer, message="")
    for access in (Access(shown="a", need=_by_plugin), Access(shown="b", need=_by_configuration))
)
#: A router remembers some and forgets others, so the same path may be met again as the same route or not.
ROUTES = st.builds(Route, st.sampled_from(ENDPOINTS), PATHS, st.just("/"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return a_snapshot(tmp_path_factory.mktemp("configuration"), "")


@settings(max_examples=300)
@given(
    data=st.data(), held=st.tuples(HELD, HELD), names=st.lists(st.sampled_from(["jobs:ro", "x"]), min_size=2)
)
def test_memory_decides_nothing(
    plain: Snapshot, data: st.DataObject, held: tuple[tuple[str, ...], tuple[str, ...]], names: list[str]
) -> None:
    """SPEC 8.1: one who has seen many callers and reloads judges as one who has seen none."""
    tokens = tuple(
        AccessToken(name="twin", digest=digest_of(key), scopes=scopes)
        for key, scopes in zip((b"one", b"two"), held, strict=True)
    )
    snapshots = [replace(plain, service=replace(plain.service, name=name), tokens=tokens) for name in names]
    in_force = [snapshots[0]]
    old = _gatekeeper(in_force)
    remembered = data.draw(st.lists(ROUTES, min_size=1, max_size=4))
    for _ in range(12):
        in_force[0] = data.draw(st.sampled_from(snapshots))
        route = data.draw(st.sampled_from(remembered) | ROUTES)
        shown = data.draw(st.sampled_from([b"Bearer one", b"bearer two"]))
        assert _passes(old, route, shown) == _passes(_gatekeeper(in_force), route, shown)


def _gatekeeper(in_force: list[Snapshot]) -> Gatekeeper:
    return Gatekeeper(lambda: in_force[0], lambda: 0.0, lambda *_: None)


def _passes(gatekeeper: Gatekeeper, route: Route, shown: bytes) -> bool:
    try:
        return _admitted(gatekeeper, route, shown) == "twin"
    except DeniedError:
        return False


def _admitted(gatekeeper: Gatekeeper, route: Route, shown: bytes) -> str | None:
    token = gatekeeper.identify(route.endpoint.access, {b"authorization": shown}, None)
    gatekeeper.allow(token, route)
    return None if token is None else token.name


def test_a_caller_who_may_do_everything_leaves_nothing_behind(plain: Snapshot) -> None:
    """SPEC 8: whoever asks for what is not there, with ever new or ever longer paths, costs no memory."""
    snapshot = replace(plain, tokens=(AccessToken(name="all", digest=digest_of(b"one"), scopes=("*",)),))
    gatekeeper = _gatekeeper([snapshot])
    for number in range(100):
        route = Route(ENDPOINTS[0], {"plugin": str(number), "command": "poll"}, "/")
        assert _admitted(gatekeeper, route, b"Bearer one") == "all"
        assert sys.getrefcount(route) == 2  # its name here, and the one it is counted by
