"""Garmin's sign-in: the embedded HTML form with its CSRF token, the second factor, and the service ticket.

Garmin has no public API for one's own data. This is the sign-in of its web widget, as community clients use
it; Garmin can change it at any time. The pages are recognised by their titles.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from html import unescape
from http.cookiejar import Cookie, CookieJar
from typing import Any, NamedTuple, NoReturn

from ductile_sdk import Failure

#: Cloudflare refuses names of HTTP libraries.
USER_AGENT = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/131.0.0.0 Safari/537.36"
)
CSRF = re.compile(r'name="_csrf"\s+value="([^"]+)"')
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
TICKET = re.compile(r"\?ticket=(ST-[^\"&\s]+)")
#: Variables in a script of the page that asks for the second factor.
FACTOR = re.compile(r'var\s+(customerGuid|mfaMethod|locale|clientId|codeSentTo)\s*=\s*"([^"]*)"\s*;')
REFUSED = ("locked", "invalid", "incorrect", "account error")
BLOCKED_TITLES = ("just a moment", "attention required", "cloudflare", "access denied")
FORBIDDEN, TOO_MANY, SERVER_ERROR = 403, 429, 500
TIMEOUT = 20.0
#: A form that is sent faster than a person can type is taken for a bot.
TYPING_SECONDS = 4.0
MAX_PAGE = 2 * 1024 * 1024


class Page(NamedTuple):
    status: int
    url: str
    text: str
    headers: dict[str, str]

    @property
    def title(self) -> str:
        found = TITLE.search(self.text)
        return unescape(found[1]).strip() if found else ""

    @property
    def csrf(self) -> str | None:
        found = CSRF.search(self.text)
        return unescape(found[1]) if found else None


class SecondFactor(NamedTuple):
    """Garmin asks for a code. What is needed to go on when the code is there."""

    csrf: str
    referer: str
    cookies: list[dict[str, Any]]
    #: `email`, `sms` or `totp`, as Garmin says it.
    method: str


class SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects on the same host only: the form holds a password."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class SignIn:
    """One sign-in at the address `base`, such as https://sso.garmin.com/sso."""

    def __init__(self, base: str, cookies: list[dict[str, Any]] | None = None) -> None:
        self.base = base
        self.service_url = f"{base}/embed"
        self._jar = CookieJar()
        for cookie in cookies or []:
            self._jar.set_cookie(Cookie(**cookie))
        handlers = (urllib.request.HTTPCookieProcessor(self._jar), SameHost())
        self._opener = urllib.request.build_opener(*handlers)

    def with_password(self, username: str, password: str) -> str | SecondFactor:
        """Return the service ticket, or that a code is needed. Failure if Garmin refuses."""
        widget = {"id": "gauth-widget", "embedWidget": "true", "gauthHost": self.base}
        self._open("/embed", widget)
        form = self._open("/signin", self._parameters(), referer=self.service_url)
        if form.csrf is None:
            refuse(form, "the sign-in page has no CSRF token")
        if self.base.startswith("https:"):
            time.sleep(TYPING_SECONDS)
        fields = {"username": username, "password": password, "embed": "true", "_csrf": form.csrf}
        answer = self._open("/signin", self._parameters(), referer=form.url, form=fields)
        title = answer.title.lower()
        if any(word in title for word in REFUSED):
            raise Failure(
                f"Garmin refuses the sign-in: {answer.title!r}. Check `username` and `password` in the "
                "plugin's config by signing in at connect.garmin.com",
                retry=False,
            )
        variables = dict(FACTOR.findall(answer.text))
        if "mfa" in title or variables.get("mfaMethod"):
            return self._second_factor(answer, variables)
        return read_ticket(answer)

    def with_code(self, code: str, factor: SecondFactor) -> str:
        """Return the service ticket for the code that Garmin has sent. Failure if Garmin refuses it."""
        fields = {"mfa-code": code, "embed": "true", "_csrf": factor.csrf, "fromPage": "setupEnterMfaCode"}
        page = self._open(
            "/verifyMFA/loginEnterMfaCode", self._parameters(), referer=factor.referer, form=fields
        )
        if page.title != "Success":
            raise Failure(f"Garmin does not accept the code: {page.title!r}", retry=False)
        return read_ticket(page)

    def _second_factor(self, page: Page, variables: dict[str, str]) -> SecondFactor:
        if page.csrf is None:
            refuse(page, "the page for the second factor has no CSRF token")
        method = variables.get("mfaMethod", "").lower()
        if method in ("email", "sms") and not variables.get("codeSentTo"):
            # The page itself asks for the code by this request when a person opens it.
            wanted = {name: variables.get(name, "") for name in ("customerGuid", "mfaMethod", "locale")}
            self._open(
                "/verifyMFA/mfaCode", {"clientId": variables.get("clientId", "")}, page.url, body=wanted
            )
        kept = [{name: value for name, value in vars(each).items() if name != "_rest"} for each in self._jar]
        cookies = [{**cookie, "rest": {}} for cookie in kept]
        return SecondFactor(page.csrf, page.url, cookies, method or "unknown")

    def _parameters(self) -> dict[str, str]:
        place = self.service_url
        return {
            "id": "gauth-widget",
            "embedWidget": "true",
            "gauthHost": place,
            "service": place,
            "source": place,
            "redirectAfterAccountLoginUrl": place,
            "redirectAfterAccountCreationUrl": place,
        }

    def _open(
        self,
        path: str,
        query: dict[str, str],
        referer: str | None = None,
        form: dict[str, str] | None = None,
        body: dict[str, str] | None = None,
    ) -> Page:
        headers = {"User-Agent": USER_AGENT, "Accept-Language": "en-US,en;q=0.9"}
        if referer is not None:
            headers["Referer"] = referer
        data = None if form is None else urllib.parse.urlencode(form).encode()
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = f"{self.base}{path}?{urllib.parse.urlencode(query)}"
        asked = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - the address is checked
        try:
            with self._opener.open(asked, timeout=TIMEOUT) as answer:
                page = read_page(answer)
        except urllib.error.HTTPError as error:
            with error:
                page = read_page(error)
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise Failure(f"{self.base}{path} does not answer: {reason}") from None
        check_page(page, f"{self.base}{path}")
        return page


def read_page(answer: Any) -> Page:
    text = answer.read(MAX_PAGE).decode("utf-8", "replace")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Page(answer.status, answer.url, text, headers)


def check_page(page: Page, place: str) -> None:
    """Raise the Failure for a page that is no answer. A sign-in is not retried: that makes a block longer."""
    if page.status == TOO_MANY:
        wait = page.headers.get("retry-after")
        asked = f"; it asks to wait {wait} s" if wait else ""
        raise Failure(
            f"{place} answers 429: Garmin has had too many sign-ins from this address{asked}. "
            "Try again in an hour; each try before makes the block longer",
            retry=False,
        )
    if is_blocked(page):
        raise Failure(
            f"{place} answers {page.status} {page.title!r}: Cloudflare, in front of Garmin, takes this "
            "machine for a bot. Try again later or from another network; a session that there is stays valid",
            retry=False,
        )
    if page.status >= SERVER_ERROR:
        raise Failure(f"{place} answers {page.status} {page.title!r}")


def is_blocked(page: Page) -> bool:
    return page.status == FORBIDDEN or any(word in page.title.lower() for word in BLOCKED_TITLES)


def read_ticket(page: Page) -> str:
    found = TICKET.search(page.text)
    if page.title != "Success" or found is None:
        refuse(page, "there is no service ticket")
    return unescape(found[1])


def refuse(page: Page, reason: str) -> NoReturn:
    raise Failure(
        f"Garmin's sign-in is not what this plugin expects: {reason} (status {page.status}, title "
        f"{page.title!r}). Garmin may have changed it, or wants you to confirm something: sign in at "
        "connect.garmin.com",
        retry=False,
    )
