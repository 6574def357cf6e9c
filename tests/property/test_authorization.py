"""Earlier requests and earlier configurations do not influence authorization."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.scheduling import a_snapshot
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken, Snapshot
from ductile.errors import DeniedError
from ductile.http.authentication import Authenticator
from ductile.operations.operation import Access
from ductile.struct import replace

NOW = datetime(2026, 2, 8, tzinfo=UTC)
SCOPES = ("echo:ro", "echo:rw", "plugin:rw", "jobs:ro")
NAMES = st.sampled_from(["echo", "fetch", "poll"])
PATHS = st.fixed_dictionaries({"plugin": NAMES, "command": NAMES})
SCOPE_LISTS = st.lists(st.sampled_from(SCOPES), max_size=2).map(tuple)


def _by_plugin(_snapshot: Snapshot, path: Mapping[str, str]) -> tuple[str, ...]:
    return (f"{path['plugin']}:rw", "plugin:rw")


def _by_configuration(snapshot: Snapshot, path: Mapping[str, str]) -> tuple[str, ...]:
    return (f"{path['command']}:ro", *snapshot.service.name.split())


ACCESSES = (
    Access(doc_text="a", required_scopes=_by_plugin),
    Access(doc_text="b", required_scopes=_by_configuration),
)
Route = tuple[Access, Mapping[str, str]]
ROUTES: st.SearchStrategy[Route] = st.tuples(st.sampled_from(ACCESSES), PATHS)


@pytest.fixture(scope="module")
def base_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return a_snapshot(tmp_path_factory.mktemp("configuration"), "")


@settings(max_examples=300)
@given(
    data=st.data(),
    scope_lists=st.tuples(SCOPE_LISTS, SCOPE_LISTS),
    names=st.lists(st.sampled_from(["jobs:ro", "x"]), min_size=2),
)
def test_earlier_requests_decide_nothing(
    base_snapshot: Snapshot,
    data: st.DataObject,
    scope_lists: tuple[tuple[str, ...], tuple[str, ...]],
    names: list[str],
) -> None:
    """An authenticator that has handled many requests and reloads decides like a new one."""
    tokens = tuple(
        AccessToken(name="twin", digest=digest_of(key), scopes=scopes)
        for key, scopes in zip((b"one", b"two"), scope_lists, strict=True)
    )
    snapshots = [
        replace(base_snapshot, service=replace(base_snapshot.service, name=name), tokens=tokens)
        for name in names
    ]
    in_force = [snapshots[0]]
    authenticator = _authenticator(in_force)
    repeated = data.draw(st.lists(ROUTES, min_size=1, max_size=4))
    for _ in range(12):
        in_force[0] = data.draw(st.sampled_from(snapshots))
        route = data.draw(st.sampled_from(repeated) | ROUTES)
        header = data.draw(st.sampled_from([b"Bearer one", b"bearer two"]))
        assert _is_admitted(authenticator, route, header) == _is_admitted(
            _authenticator(in_force), route, header
        )


def _authenticator(in_force: list[Snapshot]) -> Authenticator:
    return Authenticator(lambda: in_force[0], lambda: 0.0, lambda: NOW, lambda *_: None)


def _is_admitted(authenticator: Authenticator, route: Route, header: bytes) -> bool:
    try:
        return _authorize(authenticator, route, header) == "twin"
    except DeniedError:
        return False


def _authorize(authenticator: Authenticator, route: Route, header: bytes) -> str | None:
    access, path = route
    token = authenticator.identify(access, {b"authorization": header}, None)
    authenticator.authorize(token, access, path)
    return None if token is None else token.name


def test_requests_leave_nothing_in_memory(base_snapshot: Snapshot) -> None:
    """Requests for new paths use no memory, whatever the rights of the token."""
    snapshot = replace(
        base_snapshot, tokens=(AccessToken(name="all", digest=digest_of(b"one"), scopes=("*",)),)
    )
    authenticator = _authenticator([snapshot])
    for number in range(100):
        path = {"plugin": str(number), "command": "poll"}
        assert _authorize(authenticator, (ACCESSES[0], path), b"Bearer one") == "all"
        assert sys.getrefcount(path) == 2  # the local name and the argument of getrefcount
