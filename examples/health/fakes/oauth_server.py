"""The OAuth 2.0 part of a fake: codes with PKCE, refresh with and without rotation, device flow."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlencode

from fakes.service import Call, FakeService, Reply

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class Rotation(Enum):
    """What becomes of a refresh token that was used."""

    #: It stays the same, as with Google.
    NONE = "none"
    #: It is replaced, and invalid at once.
    STRICT = "strict"
    #: It is replaced, and invalid when the new access token is used, as with Withings.
    ON_USE = "on_use"


@dataclass
class Grant:
    """What one user has allowed."""

    scope: str = ""
    revoked: bool = False
    refresh_tokens: set[str] = field(default_factory=set)
    #: Access tokens with the time at which they expire.
    access_tokens: dict[str, float] = field(default_factory=dict)
    #: Refresh tokens that become invalid when an access token is used.
    replaced_by: dict[str, str] = field(default_factory=dict)


@dataclass
class _Code:
    redirect_uri: str
    challenge: str
    scope: str


class Refusal(Exception):  # noqa: N818 - an answer of the server
    """A refusal of the token endpoint, by its code in RFC 6749."""

    def __init__(self, code: str, description: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code, self.description, self.status = code, description, status


class OAuthService(FakeService):
    """A service with an authorisation server. Every user agrees, unless `denies` is set."""

    authorize_path = "/authorize"
    token_path = "/token"  # noqa: S105 - a path
    device_path = "/device/code"

    def __init__(self, *, rotation: Rotation = Rotation.STRICT, lifetime: int = 3600) -> None:
        super().__init__()
        self.client_id, self.client_secret = "client-1", "client-secret-1"
        self.rotation = rotation
        #: Seconds that an access token is valid, as the service says and enforces.
        self.lifetime = lifetime
        self.denies = False
        self.grants: list[Grant] = []
        #: Device codes that the user has confirmed; others are pending.
        self.confirmed: set[str] = set()
        self._codes: dict[str, _Code] = {}
        self._devices: dict[str, str] = {}

    # -- what a test sets

    def new_grant(self, scope: str = "all") -> tuple[str, str]:
        """Authorise without a browser: an access token and a refresh token."""
        grant = Grant(scope=scope)
        self.grants.append(grant)
        return self._issue_access(grant), self._issue_refresh(grant)

    def revoke_grants(self) -> None:
        """The user withdraws what was granted."""
        for grant in self.grants:
            grant.revoked = True
            grant.access_tokens.clear()

    def expire_access_tokens(self) -> None:
        """Let all access tokens be refused, before the time that was promised."""
        for grant in self.grants:
            grant.access_tokens = dict.fromkeys(grant.access_tokens, 0.0)

    def confirm_devices(self) -> None:
        self.confirmed |= set(self._devices)

    # -- for subclasses

    def grant_of(self, call: Call) -> Grant | None:
        """The grant of the access token that came with a call; None if it is not valid."""
        token = call.bearer or ""
        for grant in self.grants:
            if not grant.revoked and grant.access_tokens.get(token, 0.0) > self.now():
                old = [name for name, access in grant.replaced_by.items() if access == token]
                for name in old:
                    grant.refresh_tokens.discard(name)
                    del grant.replaced_by[name]
                return grant
        return None

    def authorize(self, call: Call) -> Reply:
        """The page on which the user agrees; this one agrees at once."""
        given = call.query
        if given.get("client_id") != self.client_id or given.get("response_type") != "code":
            return Reply(b"unknown client", 400)
        back = {"state": given.get("state", "")}
        if self.denies:
            back |= {"error": "access_denied", "error_description": "The user denied the request"}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = _Code(
                redirect_uri=given.get("redirect_uri", ""),
                challenge=given.get("code_challenge", ""),
                scope=given.get("scope", ""),
            )
            back["code"] = code
        address = given["redirect_uri"]
        separator = "&" if "?" in address else "?"
        return Reply(b"", 302, {"Location": f"{address}{separator}{urlencode(back)}"})

    def token(self, fields: dict[str, str]) -> dict[str, object]:
        """The token document for a request with these fields. Raises `Refusal`."""
        kind = fields.get("grant_type")
        if kind == "authorization_code":
            return self._by_code(fields)
        if kind == "refresh_token":
            return self._by_refresh(fields)
        if kind == DEVICE_GRANT:
            return self._by_device(fields)
        raise Refusal("unsupported_grant_type")

    def check_client(self, fields: dict[str, str]) -> None:
        if (fields.get("client_id"), fields.get("client_secret")) != (self.client_id, self.client_secret):
            raise Refusal("invalid_client", "The client is not known", 401)

    def respond_oauth(self, call: Call) -> Reply | None:
        """The answer to a call of the authorisation server; None for other calls."""
        if call.path == self.authorize_path and call.method == "GET":
            return self.authorize(call)
        if call.path == self.device_path and call.method == "POST":
            return self._start_device(call)
        if call.path != self.token_path or call.method != "POST":
            return None
        try:
            self.check_client(call.form)
            return Reply(self.token(call.form), headers={"Cache-Control": "no-store"})
        except Refusal as refusal:
            body = {"error": refusal.code, "error_description": refusal.description}
            return Reply(body, refusal.status)

    # -- the three ways to a token

    def _by_code(self, fields: dict[str, str]) -> dict[str, object]:
        code = self._codes.pop(fields.get("code", ""), None)
        if code is None or code.redirect_uri != fields.get("redirect_uri"):
            raise Refusal("invalid_grant", "Malformed auth code.")
        if code.challenge:
            digest = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != code.challenge:
                raise Refusal("invalid_grant", "Invalid code verifier.")
        grant = Grant(scope=code.scope)
        self.grants.append(grant)
        return self._document(grant, self._issue_access(grant), self._issue_refresh(grant))

    def _by_refresh(self, fields: dict[str, str]) -> dict[str, object]:
        used = fields.get("refresh_token", "")
        for grant in self.grants:
            if used in grant.refresh_tokens and not grant.revoked:
                access = self._issue_access(grant)
                if self.rotation is Rotation.NONE:
                    return self._document(grant, access, None)
                if self.rotation is Rotation.STRICT:
                    grant.refresh_tokens.discard(used)
                else:
                    grant.replaced_by[used] = access
                return self._document(grant, access, self._issue_refresh(grant))
        raise Refusal("invalid_grant", "Token has been expired or revoked.")

    def _by_device(self, fields: dict[str, str]) -> dict[str, object]:
        code = fields.get("device_code", "")
        if code not in self._devices:
            raise Refusal("invalid_grant", "Unknown device code")
        if self.denies:
            raise Refusal("access_denied", "Forbidden", 403)
        if code not in self.confirmed:
            raise Refusal("authorization_pending", "Precondition Required", 428)
        grant = Grant(scope=self._devices.pop(code))
        self.grants.append(grant)
        return self._document(grant, self._issue_access(grant), self._issue_refresh(grant))

    def _start_device(self, call: Call) -> Reply:
        code = secrets.token_urlsafe(24)
        self._devices[code] = call.form.get("scope", "")
        body = {
            "device_code": code,
            "user_code": "ABCD-EFGH",
            "verification_url": f"{self.url}/device",
            "expires_in": 1800,
            "interval": 0,
        }
        return Reply(body)

    def _issue_access(self, grant: Grant) -> str:
        token = f"access-{secrets.token_hex(8)}"
        grant.access_tokens[token] = self.now() + self.lifetime
        return token

    def _issue_refresh(self, grant: Grant) -> str:
        token = f"refresh-{secrets.token_hex(8)}"
        grant.refresh_tokens.add(token)
        return token

    def _document(self, grant: Grant, access: str, refresh: str | None) -> dict[str, object]:
        document: dict[str, object] = {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.lifetime,
            "scope": grant.scope,
        }
        if refresh is not None:
            document["refresh_token"] = refresh
        return document
