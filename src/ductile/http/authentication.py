"""Authentication and authorization of HTTP requests, for every surface that is reached by HTTP.

Requests carry a bearer token, which is compared by digest with the tokens of the configuration in force, or
the session cookie of a browser that signed in with one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from hmac import compare_digest

from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken, Snapshot
from ductile.core.auth_scopes import allows
from ductile.core.host_names import is_loopback_listener, is_meant_for
from ductile.core.timestamps import format_timestamp
from ductile.errors import DeniedError, MisdirectedError, TooManyError, UnauthorizedError
from ductile.http.sessions import (
    BrowserSession,
    Sessions,
    refuse_foreign_host,
    refuse_other_origin,
    session_cookie,
)
from ductile.operations.operation import Access
from ductile.operations.system.probes import is_forwarded

_SCHEME = b"bearer "
#: A peer that sends more unknown tokens than this within `UNKNOWN_TOKEN_SECONDS` gets the status 429.
MAX_UNKNOWN_TOKENS = 10
UNKNOWN_TOKEN_SECONDS = 60.0
_MAX_PEERS = 1024


class TokenTable:
    """The tokens of one configuration."""

    def __init__(self, tokens: tuple[AccessToken, ...]) -> None:
        self._tokens = [(token.digest, token) for token in tokens]

    def find(self, presented: bytes) -> AccessToken | None:
        """Return the token with this secret, if there is one.

        Takes the same time wherever the token is in the table and however much of the secret is right.
        """
        digest = digest_of(presented)
        match = None
        for token_digest, token in self._tokens:
            if compare_digest(token_digest, digest):
                match = token
        return match


class UnknownTokenLimiter:
    """Counts unknown tokens by peer. Remembers a bounded number of peers, the latest ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.peers: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def record(self, peer: str) -> float | None:
        """Count one unknown token of a peer. Returns the seconds to wait if there were too many."""
        now = self._clock()
        count, since = self.peers.pop(peer, (0, now))
        if now - since >= UNKNOWN_TOKEN_SECONDS:
            count, since = 0, now
        self.peers[peer] = (count + 1, since)
        while len(self.peers) > _MAX_PEERS:
            self.peers.popitem(last=False)
        return None if count < MAX_UNKNOWN_TOKENS else since + UNKNOWN_TOKEN_SECONDS - now


class Authenticator:
    """Identifies callers and checks their permissions by the configuration in force: a reload takes effect
    with the next request.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_unknown_token: Callable[[str, bool], None],
    ) -> None:
        """`on_unknown_token(peer, too_many)` is called for each unknown token."""
        self._now = now
        self._snapshot = snapshot
        #: The configuration that `_tokens` is made from.
        self._tokens_snapshot: Snapshot | None = None
        self._tokens = TokenTable(())
        self._unknown_tokens = UnknownTokenLimiter(clock)
        self._on_unknown_token = on_unknown_token
        self.sessions = Sessions(now)

    def identify(
        self, access: Access, headers: Mapping[bytes, bytes], peer: str | None, method: str = "GET"
    ) -> AccessToken | None:
        """Return the caller's token, or None if the endpoint needs none.

        A session counts as its token, if the request comes from our own page. Raises `UnauthorizedError`
        without a known token, `TooManyError` after too many unknown ones, and `MisdirectedError` if a page of
        another host may have sent the request.
        """
        snapshot = self._snapshot()
        needs_no_token = access.required_scopes is None or (access.discovery and is_discovery_open(snapshot))
        if needs_no_token:
            # Any host name is accepted for a catalogue that is open to all, and for health behind a proxy.
            any_host = snapshot.api.open_discovery if access.discovery else is_forwarded(headers)
            if any_host or not is_host_mismatch(snapshot.api.listen, headers):
                return None
        authorization = headers.get(b"authorization")
        if authorization is not None:
            return self._identify_token(snapshot, authorization, peer)
        if session_cookie(headers) is not None:
            return self.identify_session(headers, method).token
        if needs_no_token:
            raise host_mismatch_error(snapshot.api.listen, suggests_token=True)
        raise UnauthorizedError("there is no token", hint="Send the header Authorization: Bearer TOKEN.")

    def sign_in(self, secret: str, peer: str | None) -> AccessToken:
        """Return the token with this secret. Raises `UnauthorizedError` or `TooManyError`."""
        return self._identify_token(self._snapshot(), _SCHEME + secret.encode(), peer)

    def identify_session(self, headers: Mapping[bytes, bytes], method: str) -> BrowserSession:
        """Return the session of a browser. Raises `UnauthorizedError` if it has none, or one that has ended,
        `DeniedError` and `MisdirectedError` if another page than ours sent the request.
        """
        snapshot = self._snapshot()
        refuse_foreign_host(snapshot.api.listen, headers)
        session = self._session(snapshot, headers)
        if session is None:
            raise UnauthorizedError("there is no session, or it has ended", hint="Sign in at /ui.")
        refuse_other_origin(method, headers, session.csrf)
        return session

    def _session(self, snapshot: Snapshot, headers: Mapping[bytes, bytes]) -> BrowserSession | None:
        """Return the session of the cookie, if there is a valid one."""
        cookie = session_cookie(headers)
        session = None if cookie is None else self.sessions.read(cookie, snapshot.tokens)
        return None if session is None or self._is_expired(session.token) else session

    def _identify_token(self, snapshot: Snapshot, authorization: bytes, peer: str | None) -> AccessToken:
        """Return the token. Raises `UnauthorizedError` or `TooManyError` if it is unknown or has expired."""
        token = self._find(snapshot, authorization)
        if token is None:
            # Only unknown tokens are limited: behind a proxy, all callers have the same address.
            wait = self._unknown_tokens.record(peer or "")
            self._on_unknown_token(peer or "", wait is not None)
            if wait is None:
                raise UnauthorizedError(
                    "unknown token", hint="`ductile token list` shows which tokens there are."
                )
            seconds = max(1, round(wait))
            raise TooManyError(
                "too many wrong tokens from this address",
                hint=f"Try again in {seconds} seconds.",
                details={"retry_after_seconds": seconds},
            )
        if self._is_expired(token):
            assert token.expires_at is not None  # noqa: S101 - only an expiry makes a token expired
            # A caller with the old secret may learn that there is a new one.
            raise UnauthorizedError(
                f"this secret of the token {token.name} has expired: it was replaced, and valid until "
                f"{format_timestamp(token.expires_at)}",
                hint="Use the new secret, which `ductile token rotate` has shown.",
            )
        return token

    def authorize(self, token: AccessToken | None, access: Access, path: Mapping[str, str]) -> None:
        """Raise `DeniedError` if the token, as `identify` returned it, lacks the scope.

        This is separate from `identify` so that the log can name the token of a request that is denied.
        """
        if token is None or access.required_scopes is None or access.discovery or access.any_token:
            return
        needed = access.required_scopes(self._snapshot(), path)
        if not allows(token.scopes, needed):
            raise DeniedError(
                f"the token {token.name} may not do this",
                hint=f"It needs the scope {' or '.join(needed)}.",
                details={"needed": list(needed)},
            )

    def still_admits(self, access: Access, path: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request that was admitted earlier would be admitted now.

        A response that takes long, such as a stream, can outlive a reload.
        """
        snapshot = self._snapshot()
        if access.required_scopes is None or (access.discovery and is_discovery_open(snapshot)):
            return True
        token = self._find(snapshot, headers.get(b"authorization"))
        if b"authorization" not in headers and (session := self._session(snapshot, headers)) is not None:
            token = session.token
        if token is None or self._is_expired(token):
            return False
        if access.discovery or access.any_token:
            return True
        return allows(token.scopes, access.required_scopes(snapshot, path))

    def _find(self, snapshot: Snapshot, authorization: bytes | None) -> AccessToken | None:
        """Return the token of an `Authorization` header, if there is one."""
        if snapshot is not self._tokens_snapshot:
            self._tokens, self._tokens_snapshot = TokenTable(snapshot.tokens), snapshot
        if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._tokens.find(authorization[len(_SCHEME) :].strip())

    def _is_expired(self, token: AccessToken) -> bool:
        return token.expires_at is not None and token.expires_at <= self._now()


def is_discovery_open(snapshot: Snapshot) -> bool:
    """Return whether the catalogue of plugins and endpoints can be read without a token."""
    return snapshot.api.open_discovery or is_loopback_listener(snapshot.api.listen)


def is_host_mismatch(listen_address: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request to a loopback listener names another host, or comes from another host's page
    (see `ductile.core.host_names`). A listener that is not on loopback does not know its names.
    """
    values = (headers.get(name) for name in (b"host", b"origin"))
    host, origin = (None if value is None else value.decode("latin-1") for value in values)
    return is_loopback_listener(listen_address) and not is_meant_for(host, origin, listen_address)


def host_mismatch_error(listen_address: str, *, suggests_token: bool) -> MisdirectedError:
    hint = f"Call it as http://{listen_address}, and from no page of another host"
    return MisdirectedError(
        "the Host or Origin header names another host than this listener's",
        hint=f"{hint}; or send the header Authorization: Bearer TOKEN." if suggests_token else f"{hint}.",
    )
