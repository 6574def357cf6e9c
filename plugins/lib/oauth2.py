"""OAuth 2.0 for plugins: authorisation code with PKCE, device flow, and refresh that survives a kill.

    import oauth2

    def account(request):
        return oauth2.Account(request, oauth2.Provider(client_id=request.config["client_id"], ...))

    oauth2.add_commands(plugin, account)      # oauth_start and oauth_callback, for `ductile plugin authorize`

    @plugin.command
    def poll(request):
        answer = account(request).call("GET", "https://api.example.com/things")

The grant is in the plugin's state under `oauth`. State is applied when a job has succeeded; many providers
make the previous refresh token invalid before that. So a new grant is written to a file in
`DUCTILE_DATA_DIR`, and is on the disk, before its access token is used. The grant with the higher number
counts, and what the file has goes back into the state with the next job.

Plugins that use this declare `concurrency_safe: false`, and call `request.remember` after their last call of
the service: with a new grant the library remembers the whole state as it was. A lock protects the refresh of
jobs that run at the same time in spite of it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from ductile_http import Answer, call
from ductile_sdk import Failure, Plugin, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: An access token is renewed this many seconds before its end: clocks differ, and requests take time.
EXPIRY_MARGIN = 60.0
#: How long an authorisation that was begun may be completed.
PENDING_SECONDS = 600.0
#: Seconds that a refresh may take. It is not begun with less time left.
_REFRESH_SECONDS = 20.0
_SHORTEST_REFRESH = 5.0
_DATA_DIR = "DUCTILE_DATA_DIR"
_STATE_KEY = "oauth"
_UNAUTHORIZED = 401
#: Errors of the token endpoint that a retry can help with.
_RETRIED_ERRORS = ("temporarily_unavailable", "server_error", "slow_down", "authorization_pending")
#: Errors that the grant is no longer valid.
_GRANT_ERRORS = ("invalid_grant", "expired_token", "access_denied")
_SLOW_DOWN_SECONDS = 5.0


class TokenError(Exception):
    """The token endpoint refused; `code` is one of RFC 6749, or of RFC 8628 for the device flow."""

    def __init__(self, code: str, description: str = "") -> None:
        super().__init__(f"{code}: {description}" if description else code)
        self.code = code


def read_token_answer(answer: Answer) -> dict[str, Any]:
    """Return the token document of an answer as RFC 6749 defines it. Raises `TokenError` or `Failure`."""
    body = answer.json_or_empty()
    if answer.ok and isinstance(body.get("access_token"), str):
        return body
    if isinstance(body.get("error"), str):
        raise TokenError(body["error"], str(body.get("error_description") or ""))
    if answer.ok:
        raise Failure(f"{answer.what} answers without an access token")
    raise answer.failure()


class Provider(NamedTuple):
    """Where the grants of a service come from, and how it differs from the standard."""

    client_id: str
    client_secret: str
    authorize_url: str
    token_url: str
    scope: str = ""
    #: Of the device flow (RFC 8628); empty if the service does not have it.
    device_url: str = ""
    #: Added to the address that the user opens.
    authorize_parameters: Mapping[str, str] = {}
    #: Called with the fields of each token request; returns the fields that are sent.
    prepare: Callable[[dict[str, str]], dict[str, str]] = lambda fields: fields
    #: Returns the token document of an answer, or raises `TokenError`.
    read_answer: Callable[[Answer], dict[str, Any]] = read_token_answer
    #: Further fields of the token document that belong to the grant, such as a user's id.
    keep: tuple[str, ...] = ()
    #: The redirect address that is registered with the service; empty if the caller may choose it.
    redirect_uri: str = ""
    #: Sent with each token request.
    headers: Mapping[str, str] = {}


class Account:
    """The grant of one configured plugin, for one job."""

    def __init__(
        self, request: Request, provider: Provider, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.request = request
        self.provider = provider
        self._clock = clock
        self._file = GrantFile(os.environ.get(_DATA_DIR))
        stored = request.state.get(_STATE_KEY)
        self._stored: dict[str, Any] = stored if isinstance(stored, dict) else {}
        #: The newest grant, from the state or from the file; None if there is none.
        self.grant = self._newest()

    @property
    def authorize_command(self) -> str:
        return f"ductile plugin authorize {self.request.instance or 'NAME'}"

    @property
    def document(self) -> dict[str, Any]:
        """What the state has under `oauth` after this job: part of a fact that is the whole state."""
        return self._stored

    # -- using it

    def access_token(self, rejected: str | None = None) -> str:
        """Return a valid access token, refreshed if necessary. `rejected` is one that the service refused.

        Failure, which is not retried, if there is no grant or the user has withdrawn it.
        """
        grant = self._connected()
        if not self._is_usable(grant, rejected):
            with self._file.locked(), _signals_held():
                grant = self._newest() or grant  # Another job may have refreshed it.
                if not self._is_usable(grant, rejected):
                    grant = self._refresh(grant)
                    self._file.write(grant)
            self._adopt(grant)
        return str(grant["access_token"])

    def call(
        self,
        method: str,
        url: str,
        *,
        is_rejected: Callable[[Answer], bool] = lambda answer: answer.status == _UNAUTHORIZED,
        headers: Mapping[str, str] | None = None,
        **parts: Any,
    ) -> Answer:
        """Send a request with the access token, and once more with a new one if the service refuses it.

        That the token is refused although it should be valid happens if a clock is wrong, or the user has
        changed a password. `parts` are those of `ductile_http.call`.
        """
        token = self.access_token()
        answer = self._send(method, url, token, headers, parts)
        if is_rejected(answer):
            answer = self._send(method, url, self.access_token(rejected=token), headers, parts)
            if is_rejected(answer):
                raise self._lost(f"{answer.what} refuses a new access token")
        return answer

    def _send(
        self, method: str, url: str, token: str, headers: Mapping[str, str] | None, parts: dict[str, Any]
    ) -> Answer:
        named = {**(headers or {}), "Authorization": f"Bearer {token}"}
        return call(self.request, method, url, headers=named, **parts)

    # -- getting it

    def start(self) -> dict[str, Any]:
        """Begin an authorisation; what is needed to complete it is kept in the state for ten minutes."""
        if self.request.payload.get("flow") == "device":
            return self._start_device()
        redirect_uri = self.provider.redirect_uri or self.request.payload.get("redirect_uri")
        if not isinstance(redirect_uri, str) or not redirect_uri:
            raise Failure(
                "`redirect_uri` is missing: give it in the payload or in the plugin's config", retry=False
            )
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        self._begin({"state_secret": state, "verifier_secret": verifier, "redirect_uri": redirect_uri})
        query = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": redirect_uri,
            **({"scope": self.provider.scope} if self.provider.scope else {}),
            "state": state,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
            **self.provider.authorize_parameters,
        }
        return {
            "flow": "code",
            "url": f"{self.provider.authorize_url}?{urlencode(query)}",
            "redirect_uri": redirect_uri,
            "expires_in": int(PENDING_SECONDS),
        }

    def complete(self) -> str:
        """Exchange what the provider returned for a grant. Repeating it with the same code is harmless."""
        payload = self.request.payload
        if payload.get("error"):
            words = payload.get("error_description") or "the user or the provider refused"
            raise Failure(f"not authorised: {payload['error']}: {words}", retry=False)
        if payload.get("flow") == "device":
            return self._complete_device()
        code = payload.get("code")
        if not isinstance(code, str) or not code:
            raise Failure("`code` is missing in the payload", retry=False)
        made_by = hashlib.sha256(code.encode()).hexdigest()
        if self.resume(made_by):
            return "connected"
        pending = self._pending("state_secret")
        known, given = str(pending["state_secret"]), str(payload.get("state"))
        if not hmac.compare_digest(known.encode(), given.encode(errors="replace")):
            raise Failure(
                f"`state` is not that of the last authorisation: repeat `{self.authorize_command}`",
                retry=False,
            )
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": str(pending["redirect_uri"]),
            "code_verifier": str(pending["verifier_secret"]),
        }
        return self._connect(self._exchange(fields, made_by))

    def resume(self, made_by: str) -> bool:
        """Connect with the grant that an earlier attempt has obtained. Returns whether there is one.

        The process was killed after the exchange: the code is used up, and the file has the grant.
        """
        known = self._file.read()
        if known is None or known.get("made_by") != made_by:
            return False
        self._connect(known)
        return True

    def _start_device(self) -> dict[str, Any]:
        if not self.provider.device_url:
            raise Failure("this service has no device flow: authorise it with a browser", retry=False)
        form = {"client_id": self.provider.client_id, "scope": self.provider.scope}
        answer = call(self.request, "POST", self.provider.device_url, form=form)
        body = answer.json_or_empty()
        if not answer.ok or not isinstance(body.get("device_code"), str):
            raise answer.failure()
        seconds = float(body.get("expires_in") or PENDING_SECONDS)
        interval = float(body.get("interval", _SLOW_DOWN_SECONDS))
        self._begin({"device_secret": body["device_code"], "interval": interval}, seconds)
        return {
            "flow": "device",
            "user_code": body.get("user_code"),
            # Google says `verification_url`, the standard `verification_uri`.
            "url": body.get("verification_uri") or body.get("verification_url"),
            "url_with_code": body.get("verification_uri_complete"),
            "expires_in": int(seconds),
        }

    def _complete_device(self) -> str:
        """Ask until the user has confirmed, as often as the provider allows."""
        pending = self._pending("device_secret")
        code, interval = str(pending["device_secret"]), float(pending["interval"])
        made_by = hashlib.sha256(code.encode()).hexdigest()
        if self.resume(made_by):
            return "connected"
        grant_type = "urn:ietf:params:oauth:grant-type:device_code"
        while True:
            if self.request.seconds_left() < interval + _SHORTEST_REFRESH + 1:
                raise Failure("the user has not confirmed yet")
            try:
                return self._connect(self._exchange({"grant_type": grant_type, "device_code": code}, made_by))
            except TokenError as error:
                if error.code not in ("authorization_pending", "slow_down"):
                    raise self._refused(error) from None
                interval += _SLOW_DOWN_SECONDS if error.code == "slow_down" else 0
            time.sleep(interval)

    def _begin(self, pending: dict[str, Any], seconds: float = PENDING_SECONDS) -> None:
        """Keep an authorisation that has begun. It replaces an earlier one; the grant stays until the end."""
        document = {**self._stored, "pending": {**pending, "expires_at": self._clock() + seconds}}
        self._remember(document)

    def _pending(self, key: str) -> dict[str, Any]:
        pending = self._stored.get("pending")
        if not isinstance(pending, dict) or key not in pending:
            words = "no authorisation has begun, or it is completed already"
        elif self._clock() > float(pending["expires_at"]):
            words = "the authorisation was not completed in time"
        else:
            return pending
        raise Failure(f"{words}: repeat `{self.authorize_command}`", retry=False)

    def _exchange(self, fields: dict[str, str], made_by: str) -> dict[str, Any]:
        """Get the first grant. It is on the disk when this returns."""
        with self._file.locked(), _signals_held():
            try:
                document = self._request_token(fields)
            except TokenError as error:
                if fields["grant_type"] != "authorization_code":
                    raise
                if error.code not in _GRANT_ERRORS:
                    raise self._refused(error) from None
                raise Failure(
                    f"the provider refuses the code ({error}): repeat `{self.authorize_command}`", retry=False
                ) from None
            grant = {**document, "id": secrets.token_hex(8), "number": 1, "made_by": made_by}
            if "refresh_token" not in grant:
                self.request.log(
                    "the provider gave no refresh token: access ends when the access token expires", "warn"
                )
            self._file.write(grant)
        return grant

    def _connect(self, grant: dict[str, Any]) -> str:
        """Make a grant the one that counts. The authorisation cannot be completed a second time."""
        self.grant = grant
        self._remember({"grant": grant})
        return "connected"

    # -- refreshing it

    def _refresh(self, grant: dict[str, Any]) -> dict[str, Any]:
        token = grant.get("refresh_token")
        if not token:
            raise self._lost("the access token has expired, and the provider gave no refresh token")
        try:
            document = self._request_token({"grant_type": "refresh_token", "refresh_token": str(token)})
        except TokenError as error:
            raise self._refused(error) from None
        # A provider that does not replace the refresh token sends none; other fields stay as well.
        return {**grant, **document, "number": int(grant.get("number", 0)) + 1}

    def _request_token(self, fields: dict[str, str]) -> dict[str, Any]:
        left = self.request.seconds_left() - 1
        if left < _SHORTEST_REFRESH:
            # A process that is ended during the request may lose what the provider answers.
            raise Failure("the token was not requested: the deadline of the job is too near")
        credentials = {"client_id": self.provider.client_id, "client_secret": self.provider.client_secret}
        form = self.provider.prepare({**{k: v for k, v in credentials.items() if v}, **fields})
        asked_at = self._clock()
        headers, timeout = self.provider.headers, min(_REFRESH_SECONDS, left)
        answer = call(
            self.request, "POST", self.provider.token_url, form=form, headers=headers, timeout=timeout
        )
        document = self.provider.read_answer(answer)
        kept = {name: document[name] for name in ("scope", *self.provider.keep) if document.get(name)}
        if document.get("refresh_token"):
            kept["refresh_token"] = str(document["refresh_token"])
        # Counted from our clock before the request: the clock of the provider does not matter.
        lifetime = float(document.get("expires_in") or 3600)
        return {
            **kept,
            "access_token": str(document["access_token"]),
            "token_expires_at": asked_at + lifetime,
        }

    def _is_usable(self, grant: Mapping[str, Any], rejected: str | None) -> bool:
        fresh = float(grant.get("token_expires_at") or 0) - EXPIRY_MARGIN > self._clock()
        return fresh and bool(grant.get("access_token")) and grant.get("access_token") != rejected

    def _connected(self) -> dict[str, Any]:
        if self.grant is None:
            raise Failure(f"no account is connected: run `{self.authorize_command}`", retry=False)
        return self.grant

    def _refused(self, error: TokenError) -> Failure:
        if error.code in _GRANT_ERRORS:
            return self._lost(f"the provider refuses the grant ({error})")
        advice = "; check `client_id` and `client_secret`" if "client" in error.code else ""
        retry = error.code in _RETRIED_ERRORS
        return Failure(f"the provider refuses to give a token ({error}){advice}", retry=retry)

    def _lost(self, words: str) -> Failure:
        return Failure(
            f"{words}. The user may have withdrawn it, or it has expired: run `{self.authorize_command}`",
            retry=False,
        )

    # -- keeping it

    def _newest(self) -> dict[str, Any] | None:
        """Return the grant of the state, or the same grant from the file if that has a higher number."""
        stored = self._stored.get("grant")
        if not isinstance(stored, dict):
            return None
        written = self._file.read()
        if written is None or written.get("id") != stored.get("id"):
            return stored
        if int(written.get("number", 0)) <= int(stored.get("number", 0)):
            return stored
        self._adopt(written)
        return written

    def _adopt(self, grant: dict[str, Any]) -> None:
        self.grant = grant
        self._remember({**self._stored, "grant": grant})

    def _remember(self, document: dict[str, Any]) -> None:
        self._stored = document
        # The whole state: if the command has a rule in `fact_outputs`, its updates replace the state.
        self.request.remember(**{**self.request.state, _STATE_KEY: document})


class GrantFile:
    """The newest grant on disk. Written as a whole or not at all."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    def read(self) -> dict[str, Any] | None:
        if self._directory is None:
            return None
        try:
            with open(self._path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to load
                grant = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        return grant if isinstance(grant, dict) else None

    def write(self, grant: Mapping[str, Any]) -> None:
        """Replace the file. When this returns, the grant survives a crash of the machine."""
        draft = f"{self._path}.new"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(grant, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)  # noqa: PTH105 - as above
        directory = os.open(self._directory or "", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other jobs. Failure without a directory: what is not on the disk could be lost."""
        if self._directory is None:
            raise Failure(
                f"{_DATA_DIR} is not set, so a new token could be lost: run it as a job of Ductile",
                retry=False,
            )
        os.makedirs(self._directory, mode=0o700, exist_ok=True)  # noqa: PTH103 - as above
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @property
    def _path(self) -> str:
        return f"{self._directory}/oauth.json"


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Delay SIGTERM and SIGINT until the answer of the provider is on the disk."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a PKCE verifier (RFC 7636)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def add_commands(plugin: Plugin, account: Callable[[Request], Account]) -> None:
    """Give a plugin the commands `oauth_start` and `oauth_callback`."""

    @plugin.command
    def oauth_start(request: Request) -> dict[str, Any]:
        return account(request).start()

    @plugin.command
    def oauth_callback(request: Request) -> str:
        return account(request).complete()
