"""The browser of the system with a fresh profile, driven by tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from builders.daemons import PATIENCE
from builders.http import Api

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
#: Every browser reports a refused request as an error in its console; all other errors are defects.
_EXPECTED = "Failed to load resource"


def find_browser() -> str | None:
    """Return the browser that `DUCTILE_TEST_BROWSER` names, or the first one on the path."""
    named = os.environ.get("DUCTILE_TEST_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None,
    reason="no browser: install chromium, or name one with DUCTILE_TEST_BROWSER",
)


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Open a browser.

    A test with an event loop of its own has to close it first: Playwright runs its loop in this thread.
    """
    expect.set_options(timeout=PATIENCE * 1000)
    sandbox = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*_FLAGS, *sandbox])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Tab:
    """A page of a daemon's dashboard, and the errors in it."""

    page: Page
    api: Api
    errors: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.api.port}"

    def open(self, path: str = "/ui") -> None:
        self.page.goto(f"{self.origin}{path}")

    def sign_in(self, token: str) -> None:
        """Sign in with a request; other tests fill in the form."""
        response = self.page.context.request.post(
            f"{self.origin}/ui/session", data={"token": token}, headers={"Origin": self.origin}
        )
        assert response.ok, response.text()


@contextmanager
def a_tab(
    browser: Browser, api: Api, *, width: int = 1280, height: int = 900, scheme: str = "light"
) -> Iterator[Tab]:
    """Open a tab with cookies and storage of its own. The test fails if the page has an error."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(PATIENCE * 1000)
    tab = Tab(context.new_page(), api)
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on(
        "console",
        lambda message: (
            tab.errors.append(message.text)
            if message.type == "error" and _EXPECTED not in message.text
            else None
        ),
    )
    try:
        yield tab
        assert not tab.errors, tab.errors
    finally:
        context.close()
