"""The OAuth library of the plugins, against an authorisation server on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import oauth2
import pytest
from ductile_http import call
from ductile_sdk import Failure, Request

from fakes.oauth_server import OAuthService, Rotation
from fakes.service import Call, Reply

REDIRECT = "http://127.0.0.1:9/callback"


class ThingsService(OAuthService):
    """A service with OAuth and one resource."""

    def respond(self, call: Call) -> Reply:
        if (reply := self.respond_oauth(call)) is not None:
            return reply
        if self.grant_of(call) is None:
            return Reply({"error": "invalid_token"}, 401)
        return Reply({"things": [1]})


class ConnectedPlugin:
    """A plugin with its state from job to job, which is applied only if the job succeeds."""

    def __init__(self, service: ThingsService) -> None:
        self.service = service
        self.state: dict[str, Any] = {}
        self.clock_offset = 0.0

    def job(self, payload: dict[str, Any] | None = None, seconds: float = 60) -> oauth2.Account:
        raw = {
            "protocol": 2,
            "instance": "things",
            "state": self.state,
            "payload": payload or {},
            "deadline_at": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(),
        }
        provider = oauth2.Provider(
            client_id=self.service.client_id,
            client_secret=self.service.client_secret,
            authorize_url=self.service.url + "/authorize",
            token_url=self.service.url + "/token",
            device_url=self.service.url + "/device/code",
            scope="things.read",
        )
        clock = lambda: time.time() + self.clock_offset  # noqa: E731 - a clock
        return oauth2.Account(Request(raw), provider, clock=clock)

    def succeed(self, account: oauth2.Account) -> None:
        self.state |= account.request.succeeded("done").get("state_updates", {})

    def connect(self, grant: dict[str, Any] | None = None) -> None:
        access, refresh = self.service.new_grant()
        self.state["oauth"] = {
            "grant": {
                "id": "g1",
                "number": 1,
                "access_token": access,
                "refresh_token": refresh,
                "token_expires_at": 0,
                **(grant or {}),
            }
        }

    @property
    def refreshes(self) -> int:
        return len(self.service.calls_to("/token"))


@pytest.fixture
def service() -> Iterator[ThingsService]:
    with ThingsService() as service:
        yield service


@pytest.fixture
def plugin(service: ThingsService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectedPlugin:
    monkeypatch.setenv("DUCTILE_DATA_DIR", str(tmp_path / "plugin-data" / "things"))
    return ConnectedPlugin(service)


def things(account: oauth2.Account) -> Any:
    return account.call("GET", account.provider.token_url.replace("/token", "/things")).json()


def authorise(plugin: ConnectedPlugin, url: str) -> dict[str, str]:
    """Open the page as a browser does, and return the query of the redirect."""
    parts = urlsplit(url)
    reply = call(Request({}), "GET", f"{plugin.service.url}{parts.path}?{parts.query}")
    assert reply.status == 302
    return {name: values[0] for name, values in parse_qs(urlsplit(reply.headers["location"]).query).items()}


def start_authorisation(plugin: ConnectedPlugin) -> dict[str, Any]:
    account = plugin.job({"redirect_uri": REDIRECT})
    authorisation = account.start()
    plugin.succeed(account)
    return authorisation


def test_the_challenge_is_that_of_the_standard() -> None:
    """The values are the example in appendix B of RFC 7636."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert oauth2.challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_code_becomes_a_grant_that_works(plugin: ConnectedPlugin) -> None:
    authorisation = start_authorisation(plugin)
    query = parse_qs(urlsplit(authorisation["url"]).query)
    assert (query["code_challenge_method"], query["redirect_uri"]) == (["S256"], [REDIRECT])
    account = plugin.job(authorise(plugin, authorisation["url"]))
    assert account.complete() == "connected"
    plugin.succeed(account)
    assert things(plugin.job()) == {"things": [1]}
    assert plugin.refreshes == 1, "the exchange; the access token is fresh"


def test_the_verifier_leaves_only_towards_the_provider(plugin: ConnectedPlugin) -> None:
    """The verifier is in the state until the grant arrives, and neither in the address nor in a result."""
    authorisation = start_authorisation(plugin)
    verifier = plugin.state["oauth"]["pending"]["verifier_secret"]
    assert verifier not in json.dumps(authorisation)
    account = plugin.job(authorise(plugin, authorisation["url"]))
    account.complete()
    plugin.succeed(account)
    assert "pending" not in plugin.state["oauth"]


def test_a_state_is_used_once(plugin: ConnectedPlugin) -> None:
    callback = authorise(plugin, start_authorisation(plugin)["url"])
    account = plugin.job(callback)
    account.complete()
    plugin.succeed(account)
    with pytest.raises(Failure, match="completed already"):
        plugin.job({**callback, "code": "another"}).complete()


@pytest.mark.parametrize("state", ["forged", "fälschung"])
def test_another_state_is_refused(plugin: ConnectedPlugin, state: str) -> None:
    """A code that an attacker has put into the redirect does not connect the attacker's account."""
    callback = authorise(plugin, start_authorisation(plugin)["url"])
    with pytest.raises(Failure, match="`state` is not that of the last") as failure:
        plugin.job({**callback, "state": state}).complete()
    assert not failure.value.retry
    assert plugin.refreshes == 0


def test_an_authorisation_has_ten_minutes(plugin: ConnectedPlugin) -> None:
    callback = authorise(plugin, start_authorisation(plugin)["url"])
    plugin.clock_offset = 601
    with pytest.raises(Failure, match="not completed in time: repeat `ductile plugin authorize things`"):
        plugin.job(callback).complete()


def test_a_refused_authorisation_is_reported(plugin: ConnectedPlugin) -> None:
    plugin.service.denies = True
    with pytest.raises(Failure, match="access_denied: The user denied") as failure:
        plugin.job(authorise(plugin, start_authorisation(plugin)["url"])).complete()
    assert not failure.value.retry


def test_a_repeated_callback_finds_the_grant_of_the_first(plugin: ConnectedPlugin) -> None:
    """The process was killed after the exchange, so its state is lost, and the code is used up."""
    callback = authorise(plugin, start_authorisation(plugin)["url"])
    plugin.job(callback).complete()
    account = plugin.job(callback)
    assert account.complete() == "connected"
    plugin.succeed(account)
    assert things(plugin.job()) == {"things": [1]}


def test_without_a_grant_it_says_what_to_do(plugin: ConnectedPlugin) -> None:
    with pytest.raises(Failure, match="run `ductile plugin authorize things`") as failure:
        plugin.job().access_token()
    assert not failure.value.retry


@pytest.mark.parametrize("rotation", list(Rotation))
def test_an_expired_token_is_renewed_before_it_is_used(plugin: ConnectedPlugin, rotation: Rotation) -> None:
    plugin.service.rotation = rotation
    plugin.connect()
    for _ in range(3):
        account = plugin.job()
        assert things(account) == {"things": [1]}
        plugin.succeed(account)
        plugin.state["oauth"]["grant"]["token_expires_at"] = 0
    assert plugin.refreshes == 3


def test_a_token_is_renewed_a_minute_before_its_end(plugin: ConnectedPlugin) -> None:
    plugin.connect({"token_expires_at": time.time() + 59})
    plugin.job().access_token()
    assert plugin.refreshes == 1
    plugin.connect({"token_expires_at": time.time() + 600, "id": "g2"})
    plugin.job().access_token()
    assert plugin.refreshes == 1


def test_a_new_grant_is_on_the_disk_before_it_is_used(plugin: ConnectedPlugin, tmp_path: Path) -> None:
    """When the API is called with the new access token, the file already has the new refresh token."""
    plugin.connect()
    file = tmp_path / "plugin-data" / "things" / "oauth.json"
    tokens = []

    def record(call: Call) -> None:
        if call.path == "/things":
            tokens.append((call.bearer, json.loads(file.read_text())["access_token"]))

    plugin.service.before = record
    things(plugin.job())
    assert tokens[0][0] == tokens[0][1]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_lost_state_is_repaired_from_the_file(plugin: ConnectedPlugin) -> None:
    """The job failed after the refresh: its state was not applied, and the old token is invalid."""
    plugin.connect()
    things(plugin.job())
    account = plugin.job()
    assert things(account) == {"things": [1]}
    plugin.succeed(account)
    assert plugin.state["oauth"]["grant"]["number"] == 2
    assert plugin.refreshes == 1, "the second job used what the first one had written"


def test_the_file_of_another_grant_does_not_count(plugin: ConnectedPlugin) -> None:
    """The file does not count after a new authorisation, and after the state was removed."""
    plugin.connect()
    things(plugin.job())
    plugin.connect({"id": "g2"})
    assert things(plugin.job()) == {"things": [1]}
    plugin.state.clear()
    with pytest.raises(Failure, match="no account is connected"):
        plugin.job().access_token()


def test_a_revoked_grant_fails_for_good_and_says_what_to_do(plugin: ConnectedPlugin) -> None:
    plugin.connect()
    plugin.service.revoke_grants()
    with pytest.raises(Failure, match=r"invalid_grant.*run `ductile plugin authorize things`") as failure:
        plugin.job().access_token()
    assert not failure.value.retry


def test_a_token_that_is_refused_early_is_renewed_once(plugin: ConnectedPlugin) -> None:
    """The refusal of the provider counts, not the clock of this machine."""
    plugin.connect({"token_expires_at": time.time() + 3600})
    plugin.service.expire_access_tokens()
    assert things(plugin.job()) == {"things": [1]}
    assert plugin.refreshes == 1


def test_a_service_that_refuses_new_tokens_too_ends_it(plugin: ConnectedPlugin) -> None:
    plugin.connect()
    plugin.service.fail_next(Reply({"error": "invalid_token"}, 401), path="/things", times=2)
    with pytest.raises(Failure, match="refuses a new access token") as failure:
        things(plugin.job())
    assert not failure.value.retry


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_provider_in_trouble_is_asked_again_later(plugin: ConnectedPlugin, status: int) -> None:
    plugin.connect()
    plugin.service.fail_next(Reply({}, status, {"Retry-After": "600"}), path="/token")
    with pytest.raises(Failure, match=rf"answers {status}.*in 600 s") as failure:
        plugin.job().access_token()
    assert failure.value.retry


def test_a_short_wait_is_waited_for(plugin: ConnectedPlugin) -> None:
    plugin.connect({"token_expires_at": time.time() + 3600})
    plugin.service.fail_next(Reply({}, 429, {"Retry-After": "0"}), path="/things")
    assert things(plugin.job()) == {"things": [1]}


def test_wrong_client_credentials_are_the_operator_s(plugin: ConnectedPlugin) -> None:
    plugin.connect()
    plugin.service.client_secret = "changed"
    account = plugin.job()
    plugin.service.client_secret = "again"
    with pytest.raises(Failure, match=r"invalid_client.*check `client_id` and `client_secret`") as failure:
        account.access_token()
    assert not failure.value.retry


def test_a_refresh_is_not_begun_shortly_before_the_deadline(plugin: ConnectedPlugin) -> None:
    """The process would be ended before the response of the provider is on the disk."""
    plugin.connect()
    with pytest.raises(Failure, match="deadline of the job is too near") as failure:
        plugin.job(seconds=3).access_token()
    assert failure.value.retry
    assert plugin.refreshes == 0


def test_without_a_directory_nothing_is_refreshed(
    plugin: ConnectedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUCTILE_DATA_DIR")
    plugin.connect()
    with pytest.raises(Failure, match="DUCTILE_DATA_DIR is not set"):
        plugin.job().access_token()
    assert plugin.refreshes == 0


def test_a_device_is_authorised_without_a_browser_on_it(plugin: ConnectedPlugin) -> None:
    account = plugin.job({"flow": "device"})
    authorisation = account.start()
    plugin.succeed(account)
    assert (authorisation["user_code"], authorisation["url"]) == ("ABCD-EFGH", plugin.service.url + "/device")
    with pytest.raises(Failure, match="not confirmed yet") as failure:
        plugin.job({"flow": "device"}, seconds=5).complete()
    assert failure.value.retry
    assert plugin.job({"flow": "device"}).grant is None
    plugin.service.confirm_devices()
    account = plugin.job({"flow": "device"})
    assert account.complete() == "connected"
    plugin.succeed(account)
    assert things(plugin.job()) == {"things": [1]}


def test_a_denied_device_is_reported(plugin: ConnectedPlugin) -> None:
    account = plugin.job({"flow": "device"})
    account.start()
    plugin.succeed(account)
    plugin.service.denies = True
    with pytest.raises(Failure, match="access_denied") as failure:
        plugin.job({"flow": "device"}).complete()
    assert not failure.value.retry
