"""Signing in, and what a session may do."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from builders.browsers import Tab, needs_browser
from builders.dashboards import READER, TOKEN
from builders.http import Api

pytestmark = needs_browser


def test_a_token_opens_the_dashboard(tab: Tab) -> None:
    """Without a session every address shows the form; with a session, its page."""
    tab.open("/ui")
    expect(tab.page.get_by_role("heading", name="Sign in to Ductile")).to_be_visible()
    tab.page.get_by_label("Access token").fill("a-wrong-token")
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("unknown token")
    tab.page.get_by_label("Access token").fill(TOKEN)
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    (cookie,) = tab.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert TOKEN not in cookie["value"]
    tab.page.reload()
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()


def test_signing_out_ends_the_session(tab: Tab) -> None:
    """The cookie is removed, and a copy of it is refused."""
    tab.sign_in(TOKEN)
    cookies = tab.page.context.cookies()
    tab.open()
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_text("You are signed out.")).to_be_visible()
    assert tab.page.context.cookies() == []
    tab.page.context.add_cookies(
        [{"name": cookie["name"], "value": cookie["value"], "url": tab.origin} for cookie in cookies]
    )
    tab.page.reload()
    expect(tab.page.get_by_role("heading", name="Sign in to Ductile")).to_be_visible()


def test_the_command_line_opens_it_without_a_token(tab: Tab, api: Api) -> None:
    """A link is valid once, and leaves no trace in the address."""
    link = api.workspace.json("ui", "open")
    tab.page.goto(link["url"])
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    assert "#" not in tab.page.url
    tab.page.context.clear_cookies()
    tab.page.goto("about:blank")
    tab.page.goto(link["url"])
    expect(tab.page.get_by_role("alert")).to_contain_text("has been used")


def test_a_token_that_may_only_read_sees_no_action(tab: Tab, api: Api) -> None:
    """Pages and buttons whose requests would be refused are not shown."""
    run_id = api.post("/pipeline/broken")["job_id"]
    api.ended(run_id)
    tab.sign_in(READER)
    tab.open()
    expect(tab.page.get_by_role("link", name="pipeline broken").first).to_be_visible()
    expect(tab.page.get_by_role("link", name="Jobs", exact=True)).to_be_visible()
    assert tab.page.get_by_role("link", name="Configuration").count() == 0
    assert tab.page.get_by_role("button", name=re.compile("Retry|Cancel")).count() == 0


def test_a_token_for_its_own_jobs_begins_with_these(tab: Tab, api: Api) -> None:
    """Pages about all jobs are not shown, and no request of the page is refused."""
    foreign_id = api.post("/plugin/echo/handle")["job_id"]
    token = api.workspace.json("token", "create", "own-jobs", "--scopes", "plugin:rw,own:rw")
    own_id = api.post("/plugin/echo/handle", token=token["token"])["job_id"]
    for job_id in (foreign_id, own_id):
        api.ended(job_id)
    tab.sign_in(token["token"])
    tab.open()
    expect(tab.page.get_by_role("heading", name="Jobs")).to_be_visible()
    expect(tab.page.locator(f"a[href='/ui/job/{own_id}']").first).to_be_visible()
    assert tab.page.locator(f"a[href='/ui/job/{foreign_id}']").count() == 0
    assert tab.page.get_by_role("link", name=re.compile("^(Now|Figures|Schedules)$")).count() == 0


def test_a_revoked_token_ends_its_sessions(tab: Tab, api: Api) -> None:
    """The next request is refused, and the open stream ends."""
    token = api.workspace.json("token", "create", "short-lived", "--scopes", "jobs:ro,events:ro")
    tab.sign_in(token["token"])
    tab.open()
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    api.workspace.json("token", "revoke", "short-lived")
    expect(tab.page.get_by_text("Your session has ended.")).to_be_visible()
