"""Who asks: tokens compared by their digests, and patience with those who guess."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hmac import compare_digest

from ductile.api.endpoint import Access, MatchedRoute
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken, Snapshot
from ductile.core.auth_scopes import allows
from ductile.core.host_names import is_loopback_listener
from ductile.errors import DeniedError, TooManyError, UnauthorizedError
from ductile.http.host_check import is_misdirected, misdirected
from ductile.operations.system.probes import is_forwarded

_SCHEME = b"bearer "
_SCHEME_LENGTH = len(_SCHEME)
#: So many wrong tokens from one peer within the time, and it is told to wait.
MAX_FAILED_LOGINS = 10
FAILED_LOGIN_SECONDS = 60.0
_REMEMBERED_PEERS = 1024


class TokenTable:
    """The tokens of one configuration. They are compared by digests, which takes the same time for every
    guess, however much of it is right.
    """

    def __init__(self, tokens: tuple[AccessToken, ...]) -> None:
        self._tokens = [(token.digest, token) for token in tokens]

    def find(self, presented: bytes) -> AccessToken | None:
        digest = digest_of(presented)
        found = None
        for known, token in self._tokens:  # all of them, always: where it was found must not show
            if compare_digest(known, digest):
                found = token
        return found


class FailedLoginLimiter:
    """Wrong tokens by peer. A bounded memory: who is forgotten may guess again, at most a few times each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def note(self, peer: str) -> float | None:
        """Count one more; how many seconds to wait, if there were too many."""
        now = self._clock()
        count, since = self._peers.pop(peer, (0, now))
        if now - since >= FAILED_LOGIN_SECONDS:
            count, since = 0, now
        self._peers[peer] = (count + 1, since)
        while len(self._peers) > _REMEMBERED_PEERS:
            self._peers.popitem(last=False)
        return None if count < MAX_FAILED_LOGINS else since + FAILED_LOGIN_SECONDS - now


class Authenticator:
    """Decides who may pass. The tokens are those of the configuration in force, so a reload switches them."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        failed: Callable[[str, bool], None],
    ) -> None:
        """`failed` is told of each unknown token where it came from, and whether too many did."""
        self._snapshot = snapshot
        self._known: Snapshot | None = None
        self._ring = TokenTable(())
        #: The time of one configuration, by whose rules routes remember what they were granted.
        self._auth_version = object()
        self._guesses = FailedLoginLimiter(clock)
        self._failed = failed

    def identify(
        self, access: Access, headers: Mapping[bytes, bytes], peer: str | None
    ) -> AccessToken | None:
        """The caller's token, None where none is needed; raises what strangers are refused with."""
        snapshot = self._snapshot()
        needs_none = access.need is None or (access.discovery and is_open(snapshot))
        if needs_none and not _is_misdirected(snapshot, access, headers):
            return None
        authorization = headers.get(b"authorization")
        token = self._find(snapshot, authorization)
        if token is not None:
            return token
        if needs_none and authorization is None:
            raise misdirected(snapshot.api.listen, token_helps=True)
        raise self._refusal(authorization, peer or "")

    def allow(self, token: AccessToken | None, route: MatchedRoute) -> None:
        """Raises `DeniedError` if one who was identified may not do this.

        Asked right after identifying, and not one step with it: whoever is refused here has a name, and
        the log is to tell it.
        """
        if token is None:
            return
        if route.auth_version is not self._auth_version:
            route.auth_version, route.granted = self._auth_version, set()
        if token.scopes in route.granted:
            return
        access = route.endpoint.access
        if access.need is not None and not access.discovery:
            needed = access.need(self._snapshot(), route.values)
            if not allows(token.scopes, needed):
                raise DeniedError(
                    f"the token {token.name} may not do this",
                    hint=f"It needs the scope {' or '.join(needed)}.",
                    details={"needed": list(needed)},
                )
        route.granted.add(token.scopes)

    def still_admits(self, route: MatchedRoute, authorization: bytes | None) -> bool:
        """Whether one who was admitted would be so now; a long answer outlives a reload."""
        snapshot, access = self._snapshot(), route.endpoint.access
        if access.need is None or (access.discovery and is_open(snapshot)):
            return True
        token = self._find(snapshot, authorization)
        if token is None or access.discovery:
            return token is not None
        return allows(token.scopes, access.need(snapshot, route.values))

    def _find(self, snapshot: Snapshot, authorization: bytes | None) -> AccessToken | None:
        if snapshot is not self._known:
            self._ring, self._known, self._auth_version = TokenTable(snapshot.tokens), snapshot, object()
        if authorization is None or authorization[:_SCHEME_LENGTH].lower() != _SCHEME:
            return None
        return self._ring.find(authorization[_SCHEME_LENGTH:].strip())

    def _refusal(self, authorization: bytes | None, peer: str) -> UnauthorizedError | TooManyError:
        """A right token is never refused for the guesses of others: behind a proxy all have one address."""
        if authorization is None:
            return UnauthorizedError("there is no token", hint="Send the header Authorization: Bearer TOKEN.")
        wait = self._guesses.note(peer)
        self._failed(peer, wait is not None)
        if wait is None:
            return UnauthorizedError(
                "unknown token", hint="`ductile token list` shows which tokens there are."
            )
        seconds = max(1, round(wait))
        return TooManyError(
            "too many wrong tokens from this address",
            hint=f"Try again in {seconds} seconds.",
            details={"retry_after_seconds": seconds},
        )


def is_open(snapshot: Snapshot) -> bool:
    """Whether the catalogue is shown to anybody."""
    return snapshot.api.open_discovery or is_loopback_listener(snapshot.api.listen)


def _is_misdirected(snapshot: Snapshot, access: Access, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request that needs no token is refused for the host that it names. The catalogue is not where
    the operator has opened it to everybody, nor health to callers behind a proxy, who learn little of it.
    """
    if access.discovery:
        return not snapshot.api.open_discovery and is_misdirected(snapshot.api.listen, headers)
    return is_misdirected(snapshot.api.listen, headers) and not is_forwarded(headers)
