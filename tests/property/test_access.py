"""Who may pass: what is remembered of earlier callers decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.scheduling import a_snapshot
from ductile.api.access import Authenticator
from ductile.api.endpoint import Access, Endpoint, MatchedRoute, Reply
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken, Snapshot
from ductile.errors import DeniedError
from ductile.struct import replace

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
ROUTES = st.builds(MatchedRoute, st.sampled_from(ENDPOINTS), PATHS, st.just("/"))


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
    """One who has seen many callers and reloads judges as one who has seen none."""
    tokens = tuple(
        AccessToken(name="twin", digest=digest_of(key), scopes=scopes)
        for key, scopes in zip((b"one", b"two"), held, strict=True)
    )
    snapshots = [replace(plain, service=replace(plain.service, name=name), tokens=tokens) for name in names]
    in_force = [snapshots[0]]
    old = _authenticator(in_force)
    remembered = data.draw(st.lists(ROUTES, min_size=1, max_size=4))
    for _ in range(12):
        in_force[0] = data.draw(st.sampled_from(snapshots))
        route = data.draw(st.sampled_from(remembered) | ROUTES)
        shown = data.draw(st.sampled_from([b"Bearer one", b"bearer two"]))
        assert _passes(old, route, shown) == _passes(_authenticator(in_force), route, shown)


def _authenticator(in_force: list[Snapshot]) -> Authenticator:
    return Authenticator(lambda: in_force[0], lambda: 0.0, lambda *_: None)


def _passes(authenticator: Authenticator, route: MatchedRoute, shown: bytes) -> bool:
    try:
        return _admitted(authenticator, route, shown) == "twin"
    except DeniedError:
        return False


def _admitted(authenticator: Authenticator, route: MatchedRoute, shown: bytes) -> str | None:
    token = authenticator.identify(route.endpoint.access, {b"authorization": shown}, None)
    authenticator.allow(token, route)
    return None if token is None else token.name


def test_a_caller_who_may_do_everything_leaves_nothing_behind(plain: Snapshot) -> None:
    """Whoever asks for what is not there, with ever new or ever longer paths, costs no memory."""
    snapshot = replace(plain, tokens=(AccessToken(name="all", digest=digest_of(b"one"), scopes=("*",)),))
    authenticator = _authenticator([snapshot])
    for number in range(100):
        route = MatchedRoute(ENDPOINTS[0], {"plugin": str(number), "command": "poll"}, "/")
        assert _admitted(authenticator, route, b"Bearer one") == "all"
        assert sys.getrefcount(route) == 2  # its name here, and the one it is counted by
