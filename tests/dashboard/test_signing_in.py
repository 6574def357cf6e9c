"""Signing in, and what a session may do."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from builders.browsers import Tab, needs_browser
from builders.dashboards import READER, TOKEN
from builders.http import Api

pytestmark = needs_browser


def test_a_token_opens_the_dashboard(tab: Tab) -> None:
    """Without a session every address shows the form; with one, the page that was asked for."""
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
    """The cookie is gone, and would not be accepted if somebody had kept it."""
    tab.sign_in(TOKEN)
    kept = tab.page.context.cookies()
    tab.open()
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_text("You are signed out.")).to_be_visible()
    assert tab.page.context.cookies() == []
    tab.page.context.add_cookies(
        [{"name": each["name"], "value": each["value"], "url": tab.origin} for each in kept]
    )
    tab.page.reload()
    expect(tab.page.get_by_role("heading", name="Sign in to Ductile")).to_be_visible()


def test_the_command_line_opens_it_without_a_token(tab: Tab, api: Api) -> None:
    """A link is valid once, and leaves no trace in the address."""
    found = api.workspace.json("ui", "open")
    tab.page.goto(found["url"])
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    assert "#" not in tab.page.url
    tab.page.context.clear_cookies()
    tab.page.goto("about:blank")
    tab.page.goto(found["url"])
    expect(tab.page.get_by_role("alert")).to_contain_text("has been used")


def test_a_token_that_may_only_read_sees_no_action(tab: Tab, api: Api) -> None:
    """Pages and buttons that would be refused are not there."""
    run = api.post("/pipeline/broken")["job_id"]
    api.ended(run)
    tab.sign_in(READER)
    tab.open()
    expect(tab.page.get_by_role("link", name="pipeline broken").first).to_be_visible()
    expect(tab.page.get_by_role("link", name="Jobs", exact=True)).to_be_visible()
    assert tab.page.get_by_role("link", name="Configuration").count() == 0
    assert tab.page.get_by_role("button", name=re.compile("Retry|Cancel")).count() == 0


def test_a_token_for_its_own_jobs_begins_with_these(tab: Tab, api: Api) -> None:
    """What is about all jobs is not there, and nothing that is there is refused."""
    theirs = api.post("/plugin/echo/handle")["job_id"]
    made = api.workspace.json("token", "create", "own-jobs", "--scopes", "plugin:rw,own:rw")
    mine = api.post("/plugin/echo/handle", token=made["token"])["job_id"]
    for job_id in (theirs, mine):
        api.ended(job_id)
    tab.sign_in(made["token"])
    tab.open()
    expect(tab.page.get_by_role("heading", name="Jobs")).to_be_visible()
    expect(tab.page.locator(f"a[href='/ui/job/{mine}']").first).to_be_visible()
    assert tab.page.locator(f"a[href='/ui/job/{theirs}']").count() == 0
    assert tab.page.get_by_role("link", name=re.compile("^(Now|Figures|Schedules)$")).count() == 0


def test_a_revoked_token_ends_its_sessions(tab: Tab, api: Api) -> None:
    """At once: the next request is refused, and the open stream ends."""
    made = api.workspace.json("token", "create", "short-lived", "--scopes", "jobs:ro,events:ro")
    tab.sign_in(made["token"])
    tab.open()
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    api.workspace.json("token", "revoke", "short-lived")
    expect(tab.page.get_by_text("Your session has ended.")).to_be_visible()
