"""One-time codes by which the user who runs the daemon signs in to the dashboard without an access token."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ductile.config.secrets import digest_of

#: How long a code is valid.
VALID_SECONDS = 60.0
_MAX_CODES = 100


class SignInLinks:
    """The codes that were issued and not used yet. Only their digests are held."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The digest of each code, and when it expires; oldest first.
        self._codes: dict[bytes, float] = {}
        #: Where the API listens, such as `127.0.0.1:8080`; None while it does not.
        self.address: str | None = None

    def issue(self) -> str:
        """Return a new code. The oldest is dropped if there are too many."""
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[digest_of(code.encode())] = self._clock() + VALID_SECONDS
        return code

    def redeem(self, code: str) -> bool:
        """Return whether the code is valid. It is not valid again."""
        expires_at = self._codes.pop(digest_of(code.encode()), None)
        return expires_at is not None and self._clock() < expires_at
