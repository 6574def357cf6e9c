"""Sessions of signed-in browsers: for the dashboard only, and only as long as their token is valid."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from builders.http import Api, ApiResponse, an_api, an_api_workspace, token_for


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("api"))) as api:
        yield api


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSession:
    """A browser with a session, as the API sees it."""

    api: Api
    cookie: str
    csrf: str

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.api.port}"

    def ask(self, method: str, path: str, headers: Mapping[str, str | None] | None = None) -> ApiResponse:
        """Send a request as the dashboard does. A header that is None is left out."""
        values: dict[str, str | None] = {"Host": f"localhost:{self.api.port}", "Cookie": self.cookie}
        if method == "POST":
            values |= {"Origin": self.origin, "X-CSRF-Token": self.csrf}
        values |= headers or {}
        present = {name: value for name, value in values.items() if value is not None}
        return self.api.ask(method, path, {} if method == "POST" else None, token=None, headers=present)


def sign_in(api: Api, body: Mapping[str, str], headers: Mapping[str, str] | None = None) -> ApiResponse:
    own = {"Host": f"localhost:{api.port}", "Origin": f"http://localhost:{api.port}"}
    return api.ask("POST", "/ui/session", dict(body), token=None, headers=own | dict(headers or {}))


def a_session(api: Api, scope: str) -> BrowserSession:
    response = sign_in(api, {"token": token_for(scope)})
    assert response.status == 200, response
    cookie = response.headers["set-cookie"].partition(";")[0]
    return BrowserSession(api=api, cookie=cookie, csrf=response.body["csrf"])


def test_a_session_may_do_what_its_token_may(api: Api) -> None:
    reader, operator = a_session(api, "jobs:ro"), a_session(api, "*")
    assert reader.ask("GET", "/jobs").status == 200
    assert reader.ask("POST", "/plugin/echo/poll").code == "denied"
    assert reader.ask("GET", "/config/view").code == "denied"
    assert operator.ask("POST", "/plugin/echo/poll").status == 202


@pytest.mark.parametrize("other", ['theme={"dark": true}', "words=a b", "alone", "a[b]=1", "path=/"])
def test_cookies_of_other_programs_on_this_host_do_no_harm(api: Api, other: str) -> None:
    """A browser sends the cookies of a host to each of its ports, in whatever form they were set."""
    session = a_session(api, "jobs:ro")
    for cookies in (f"{other}; {session.cookie}", f"{session.cookie}; {other}"):
        assert session.ask("GET", "/jobs", {"Cookie": cookies}).status == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(api: Api) -> None:
    response = sign_in(api, {"token": token_for("*")})
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(response.headers["set-cookie"].split("; "))
    proxied = sign_in(api, {"token": token_for("*")}, {"X-Forwarded-Proto": "https"})
    assert "Secure" in proxied.headers["set-cookie"].split("; ")
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:1"},  # another port: the browser sends the cookie, SameSite or not
        {"Origin": "null"},
        {"Origin": None},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-CSRF-Token": None},
        {"X-CSRF-Token": "0" * 64},
    ],
)
def test_no_other_page_can_use_a_session_to_change_something(
    api: Api, headers: dict[str, str | None]
) -> None:
    before = len(api.get("/jobs")["jobs"])
    assert a_session(api, "*").ask("POST", "/plugin/echo/poll", headers).code == "denied"
    assert len(api.get("/jobs")["jobs"]) == before


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_resolves_to_this_machine_is_refused(api: Api, method: str) -> None:
    """The request is refused also with a right cookie, and also for the page itself."""
    foreign = {"Host": f"evil.example:{api.port}", "Origin": f"http://evil.example:{api.port}"}
    session = a_session(api, "*")
    foreign["Cookie"] = session.cookie
    assert (
        session.ask(method, "/jobs" if method == "GET" else "/plugin/echo/poll", foreign).code
        == "misdirected"
    )
    for path in ("/ui", "/ui/session", "/ui/static/x/main.js"):
        assert api.ask("GET", path, token=None, headers={"Host": "evil.example"}).code == "misdirected"
    assert sign_in(api, {"token": token_for("*")}, {"Host": "evil.example"}).code == "misdirected"


def test_a_session_works_behind_a_proxy(api: Api) -> None:
    """The public name is in Host, or in X-Forwarded-Host where the proxy replaces Host."""
    for headers in (
        {
            "Host": "ductile.example.org",
            "Origin": "https://ductile.example.org",
            "X-Forwarded-For": "192.0.2.1",
        },
        {
            "Host": f"localhost:{api.port}",
            "Origin": "https://ductile.example.org",
            "X-Forwarded-Host": "ductile.example.org",
        },
    ):
        response = sign_in(api, {"token": token_for("*")}, headers)
        assert response.status == 200, response
        cookie = {
            "Cookie": response.headers["set-cookie"].partition(";")[0],
            "X-CSRF-Token": response.body["csrf"],
        }
        assert api.ask("POST", "/plugin/echo/poll", {}, token=None, headers=headers | cookie).status == 202


def test_a_wrong_token_is_refused_and_guessing_is_limited(tmp_path_factory: pytest.TempPathFactory) -> None:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("guess"))) as api:
        codes = [sign_in(api, {"token": f"guess-{number}"}).code for number in range(12)]
        assert codes == ["unauthorized"] * 10 + ["too_many"] * 2
        assert sign_in(api, {"token": token_for("*")}).status == 200
    assert logged_tokens(api) == []


def logged_tokens(api: Api) -> list[str]:
    """Return the messages of the daemon's log that have a token."""
    return [
        line["message"]
        for line in api.daemon.whole_log()
        if "guess-" in str(line) or token_for("*") in str(line)
    ]


@pytest.mark.parametrize("body", [{}, {"token": ""}, {"token": 5}, {"code": "never-issued"}])
def test_a_bad_request_to_sign_in_says_what_is_missing(api: Api, body: dict[str, str]) -> None:
    response = sign_in(api, body)
    assert response.code in ("refused", "unauthorized")
    assert "set-cookie" not in response.headers


def test_a_forged_or_changed_cookie_opens_nothing(api: Api) -> None:
    session = a_session(api, "jobs:ro")
    name, _, value = session.cookie.partition("=")
    expires, nonce, signature = value.split(".")
    for forged in (
        "x",
        "..",
        f"{expires}.{nonce}.{'0' * 64}",
        f"{int(expires) + 1}.{nonce}.{signature}",
        f"{expires}.other.{signature}",
        f"{'9' * 40}.{nonce}.{signature}",
        f"{expires}.{nonce}.é",
    ):
        headers = {"Cookie": f"{name}={forged}".encode().decode("latin-1")}
        assert session.ask("GET", "/jobs", headers).code == "unauthorized"


def test_the_bearer_token_goes_before_the_cookie(api: Api) -> None:
    """A script that sends both has the rights of its bearer token, and needs no CSRF token."""
    session = a_session(api, "jobs:ro")
    headers = {"Authorization": f"Bearer {token_for('*')}", "X-CSRF-Token": None, "Origin": None}
    assert session.ask("POST", "/plugin/echo/poll", headers).status == 202


def test_revoking_and_signing_out_end_a_session(api: Api) -> None:
    token = api.workspace.json("token", "create", "guest", "--scopes", "jobs:ro")
    response = sign_in(api, {"token": token["token"]})
    guest = BrowserSession(
        api=api, cookie=response.headers["set-cookie"].partition(";")[0], csrf=response.body["csrf"]
    )
    assert guest.ask("GET", "/jobs").status == 200
    api.workspace.json("token", "revoke", "guest")
    assert guest.ask("GET", "/jobs").code == "unauthorized"
    session = a_session(api, "jobs:ro")
    assert session.ask("POST", "/ui/session/end").status == 200
    assert session.ask("GET", "/jobs").code == "unauthorized"


def test_a_session_outlives_the_daemon_unless_it_was_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A restart signs no user out. A session that was signed out stays so, also if the daemon is killed as
    soon as it has answered; a link from the command line ends with the daemon.
    """
    workspace = an_api_workspace(tmp_path_factory.mktemp("restart"))
    with an_api(workspace) as first_api:
        open_session, ended_session = a_session(first_api, "*"), a_session(first_api, "*")
        code = first_api.workspace.json("ui", "open")["url"].partition("#open=")[2]
        link_cookie = sign_in(first_api, {"code": code}).headers["set-cookie"].partition(";")[0]
        assert ended_session.ask("POST", "/ui/session/end").status == 200
        first_api.daemon.end(signal.SIGKILL)
    with an_api(workspace) as second_api:
        for cookie, status in ((open_session.cookie, 200), (ended_session.cookie, 401), (link_cookie, 401)):
            headers = {
                "Host": f"localhost:{second_api.port}",
                "Cookie": f"ductile_{second_api.port}={cookie.partition('=')[2]}",
            }
            assert second_api.ask("GET", "/jobs", headers=headers, token=None).status == status


def test_the_dashboard_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("off"), api="  ui: false\n")) as api:
        assert api.ask("GET", "/ui", token=None).code == "not_found"
        assert sign_in(api, {"token": token_for("*")}).code == "not_found"
        refusal = api.workspace.json("ui", "open", status=1)
        assert "switched off" in refusal["error"]["message"]
