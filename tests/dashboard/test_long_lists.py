"""Lists of thousands of jobs, by wheel and by keyboard, and actions on many jobs at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from builders.browsers import Tab, needs_browser
from builders.dashboards import TOKEN, a_dashboard_workspace
from builders.http import Api, an_api
from builders.many_jobs import fill_store

pytestmark = needs_browser

JOBS = 2_500
#: The largest number of rows in the document, however long the list is.
MOST_ROWS = 100


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = a_dashboard_workspace(tmp_path_factory.mktemp("many"))
    fill_store(workspace, JOBS)
    with an_api(workspace) as api:
        yield api


def test_a_list_is_scrolled_to_its_end_and_back(tab: Tab, api: Api) -> None:
    """Pages are fetched while scrolling; only the rows near the view are in the document."""
    tab.sign_in(TOKEN)
    tab.open("/ui/jobs")
    end = tab.page.locator(".rows-end")
    while "in all" not in (text_before := end.inner_text()):
        tab.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(end).not_to_have_text(text_before)
        expect(end).not_to_have_text("Loading more…")
        assert tab.page.locator("[data-row]").count() <= MOST_ROWS
    count = re.sub(r"\D", "", end.inner_text())
    assert int(count) >= JOBS
    tab.page.evaluate("scrollTo(0, 0)")
    (newest,) = api.get("/jobs?limit=1")["jobs"]
    expect(tab.page.locator("[data-row] a").first).to_have_attribute("href", f"/ui/job/{newest['job_id']}")


def test_everything_is_reached_by_keyboard(tab: Tab) -> None:
    """Keys: numbers for pages, slash for the search, j, k and Enter for rows, Tab to skip the menu."""
    tab.sign_in(TOKEN)
    tab.open()
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    keyboard = tab.page.keyboard
    keyboard.press("Tab")
    expect(tab.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    keyboard.press("2")
    rows = tab.page.locator("[data-row]")
    expect(rows.nth(2)).to_be_visible()
    for key in "jjkj":
        keyboard.press(key)
    expect(rows.nth(1)).to_be_focused()
    keyboard.press("?")
    expect(tab.page.get_by_role("dialog")).to_contain_text("search jobs")
    keyboard.press("Escape")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    keyboard.press("/")
    expect(tab.page.get_by_role("searchbox")).to_be_focused()
    keyboard.press("Tab")
    keyboard.type("fa")
    expect(tab.page).to_have_url(re.compile("status=failed"))
    expect(tab.page.locator("[data-row] .badge.succeeded")).to_have_count(0)
    tab.page.get_by_label("Status").blur()
    keyboard.press("j")
    expect(rows.first).to_be_focused()
    keyboard.press("Enter")
    expect(tab.page.get_by_role("heading", name="printer handle")).to_be_visible()


def test_many_jobs_are_cancelled_after_their_number_was_shown(tab: Tab, api: Api, tmp_path: Path) -> None:
    """Escape cancels no job; only matching jobs are counted and cancelled."""
    job_ids = [
        api.post("/plugin/waits/handle", {"payload": {"until": str(tmp_path / "never")}})["job_id"]
        for _ in range(3)
    ]
    for job_id in job_ids:
        api.daemon.wait_until_started(job_id)
    tab.sign_in(TOKEN)
    tab.open("/ui/jobs?plugin=waits&status=running")
    expect(tab.page.locator("[data-row]")).to_have_count(3)
    tab.page.get_by_role("button", name="Cancel all that match").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 3 jobs?")
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert [api.get(f"/job/{job_id}")["status"] for job_id in job_ids] == ["running"] * 3
    tab.page.get_by_role("button", name="Cancel all that match").click()
    dialog.get_by_role("button", name="Cancel 3 jobs").click()
    assert [api.ended(job_id)["reason"] for job_id in job_ids] == ["cancelled"] * 3
