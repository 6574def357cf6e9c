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


class Things(OAuthService):
    """An API with one resource."""

    def respond(self, call: Call) -> Reply:
        if (reply := self.respond_oauth(call)) is not None:
            return reply
        if self.grant_of(call) is None:
            return Reply({"error": "invalid_token"}, 401)
        return Reply({"things": [1]})


class Connected:
    """A plugin's state from job to job, as Ductile keeps it: applied only if the job succeeds."""

    def __init__(self, service: Things) -> None:
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
def service() -> Iterator[Things]:
    with Things() as service:
        yield service


@pytest.fixture
def it(service: Things, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connected:
    monkeypatch.setenv("DUCTILE_DATA_DIR", str(tmp_path / "plugin-data" / "things"))
    return Connected(service)


def things(account: oauth2.Account) -> Any:
    return account.call("GET", account.provider.token_url.replace("/token", "/things")).json()


def agree(it: Connected, url: str) -> dict[str, str]:
    """Open the page as a browser does, and return what the redirect brings back."""
    asked = urlsplit(url)
    answer = call(Request({}), "GET", f"{it.service.url}{asked.path}?{asked.query}")
    assert answer.status == 302
    return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}


def begin(it: Connected) -> dict[str, Any]:
    account = it.job({"redirect_uri": REDIRECT})
    started = account.start()
    it.succeed(account)
    return started


def test_the_challenge_is_that_of_the_standard() -> None:
    """The example in appendix B of RFC 7636."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert oauth2.challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_code_becomes_a_grant_that_works(it: Connected) -> None:
    started = begin(it)
    asked = parse_qs(urlsplit(started["url"]).query)
    assert (asked["code_challenge_method"], asked["redirect_uri"]) == (["S256"], [REDIRECT])
    account = it.job(agree(it, started["url"]))
    assert account.complete() == "connected"
    it.succeed(account)
    assert things(it.job()) == {"things": [1]}
    assert it.refreshes == 1, "the exchange; the access token is fresh"


def test_the_verifier_leaves_only_towards_the_provider(it: Connected) -> None:
    """It is in the state until the grant is there, and neither in the address nor in a result."""
    started = begin(it)
    verifier = it.state["oauth"]["pending"]["verifier_secret"]
    assert verifier not in json.dumps(started)
    account = it.job(agree(it, started["url"]))
    account.complete()
    it.succeed(account)
    assert "pending" not in it.state["oauth"]


def test_a_state_is_used_once(it: Connected) -> None:
    back = agree(it, begin(it)["url"])
    account = it.job(back)
    account.complete()
    it.succeed(account)
    with pytest.raises(Failure, match="completed already"):
        it.job({**back, "code": "another"}).complete()


@pytest.mark.parametrize("state", ["forged", "fälschung"])
def test_another_state_is_refused(it: Connected, state: str) -> None:
    """A code that somebody else has put into the redirect does not connect their account."""
    back = agree(it, begin(it)["url"])
    with pytest.raises(Failure, match="`state` is not that of the last") as refused:
        it.job({**back, "state": state}).complete()
    assert not refused.value.retry
    assert it.refreshes == 0


def test_an_authorisation_has_ten_minutes(it: Connected) -> None:
    back = agree(it, begin(it)["url"])
    it.clock_offset = 601
    with pytest.raises(Failure, match="not completed in time: repeat `ductile plugin authorize things`"):
        it.job(back).complete()


def test_a_refused_authorisation_is_reported(it: Connected) -> None:
    it.service.denies = True
    with pytest.raises(Failure, match="access_denied: The user denied") as refused:
        it.job(agree(it, begin(it)["url"])).complete()
    assert not refused.value.retry


def test_a_repeated_callback_finds_the_grant_of_the_first(it: Connected) -> None:
    """The process was killed after the exchange, so its state is lost, and the code is used up."""
    back = agree(it, begin(it)["url"])
    it.job(back).complete()
    account = it.job(back)
    assert account.complete() == "connected"
    it.succeed(account)
    assert things(it.job()) == {"things": [1]}


def test_without_a_grant_it_says_what_to_do(it: Connected) -> None:
    with pytest.raises(Failure, match="run `ductile plugin authorize things`") as refused:
        it.job().access_token()
    assert not refused.value.retry


@pytest.mark.parametrize("rotation", list(Rotation))
def test_an_expired_token_is_renewed_before_it_is_used(it: Connected, rotation: Rotation) -> None:
    it.service.rotation = rotation
    it.connect()
    for _ in range(3):
        account = it.job()
        assert things(account) == {"things": [1]}
        it.succeed(account)
        it.state["oauth"]["grant"]["token_expires_at"] = 0
    assert it.refreshes == 3


def test_a_token_is_renewed_a_minute_before_its_end(it: Connected) -> None:
    it.connect({"token_expires_at": time.time() + 59})
    it.job().access_token()
    assert it.refreshes == 1
    it.connect({"token_expires_at": time.time() + 600, "id": "g2"})
    it.job().access_token()
    assert it.refreshes == 1


def test_a_new_grant_is_on_the_disk_before_it_is_used(it: Connected, tmp_path: Path) -> None:
    """When the API is called with the new access token, the file already has the new refresh token."""
    it.connect()
    file = tmp_path / "plugin-data" / "things" / "oauth.json"
    seen = []

    def look(call: Call) -> None:
        if call.path == "/things":
            seen.append((call.bearer, json.loads(file.read_text())["access_token"]))

    it.service.before = look
    things(it.job())
    assert seen[0][0] == seen[0][1]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_lost_state_is_repaired_from_the_file(it: Connected) -> None:
    """The job failed after the refresh: its state was not applied, and the old token is invalid."""
    it.connect()
    things(it.job())
    account = it.job()
    assert things(account) == {"things": [1]}
    it.succeed(account)
    assert it.state["oauth"]["grant"]["number"] == 2
    assert it.refreshes == 1, "the second job used what the first one had written"


def test_the_file_of_another_grant_does_not_count(it: Connected) -> None:
    """After a new authorisation, and after the state was removed."""
    it.connect()
    things(it.job())
    it.connect({"id": "g2"})
    assert things(it.job()) == {"things": [1]}
    it.state.clear()
    with pytest.raises(Failure, match="no account is connected"):
        it.job().access_token()


def test_a_revoked_grant_fails_for_good_and_says_what_to_do(it: Connected) -> None:
    it.connect()
    it.service.revoke_grants()
    with pytest.raises(Failure, match=r"invalid_grant.*run `ductile plugin authorize things`") as refused:
        it.job().access_token()
    assert not refused.value.retry


def test_a_token_that_is_refused_early_is_renewed_once(it: Connected) -> None:
    """The clocks differ, or the provider ended it: what it says counts, not our clock."""
    it.connect({"token_expires_at": time.time() + 3600})
    it.service.expire_access_tokens()
    assert things(it.job()) == {"things": [1]}
    assert it.refreshes == 1


def test_a_service_that_refuses_new_tokens_too_ends_it(it: Connected) -> None:
    it.connect()
    it.service.fail_next(Reply({"error": "invalid_token"}, 401), path="/things", times=2)
    with pytest.raises(Failure, match="refuses a new access token") as refused:
        things(it.job())
    assert not refused.value.retry


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_provider_in_trouble_is_asked_again_later(it: Connected, status: int) -> None:
    it.connect()
    it.service.fail_next(Reply({}, status, {"Retry-After": "600"}), path="/token")
    with pytest.raises(Failure, match=rf"answers {status}.*in 600 s") as refused:
        it.job().access_token()
    assert refused.value.retry


def test_a_short_wait_is_waited_for(it: Connected) -> None:
    it.connect({"token_expires_at": time.time() + 3600})
    it.service.fail_next(Reply({}, 429, {"Retry-After": "0"}), path="/things")
    assert things(it.job()) == {"things": [1]}


def test_wrong_client_credentials_are_the_operator_s(it: Connected) -> None:
    it.connect()
    it.service.client_secret = "changed"
    account = it.job()
    it.service.client_secret = "again"
    with pytest.raises(Failure, match=r"invalid_client.*check `client_id` and `client_secret`") as refused:
        account.access_token()
    assert not refused.value.retry


def test_a_refresh_is_not_begun_shortly_before_the_deadline(it: Connected) -> None:
    """The process would be ended before the answer of the provider is on the disk."""
    it.connect()
    with pytest.raises(Failure, match="deadline of the job is too near") as refused:
        it.job(seconds=3).access_token()
    assert refused.value.retry
    assert it.refreshes == 0


def test_without_a_directory_nothing_is_refreshed(it: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUCTILE_DATA_DIR")
    it.connect()
    with pytest.raises(Failure, match="DUCTILE_DATA_DIR is not set"):
        it.job().access_token()
    assert it.refreshes == 0


def test_a_device_is_authorised_without_a_browser_on_it(it: Connected) -> None:
    account = it.job({"flow": "device"})
    started = account.start()
    it.succeed(account)
    assert (started["user_code"], started["url"]) == ("ABCD-EFGH", it.service.url + "/device")
    with pytest.raises(Failure, match="not confirmed yet") as pending:
        it.job({"flow": "device"}, seconds=5).complete()
    assert pending.value.retry
    assert it.job({"flow": "device"}).grant is None
    it.service.confirm_devices()
    account = it.job({"flow": "device"})
    assert account.complete() == "connected"
    it.succeed(account)
    assert things(it.job()) == {"things": [1]}


def test_a_denied_device_is_reported(it: Connected) -> None:
    account = it.job({"flow": "device"})
    account.start()
    it.succeed(account)
    it.service.denies = True
    with pytest.raises(Failure, match="access_denied") as refused:
        it.job({"flow": "device"}).complete()
    assert not refused.value.retry
