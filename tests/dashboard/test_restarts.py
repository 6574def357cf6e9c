"""A page that stays open while the daemon is reloaded, stopped and started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, expect

from builders.browsers import a_tab, needs_browser
from builders.dashboards import TOKEN, a_dashboard_workspace
from builders.http import an_api
from builders.relays import a_relay

pytestmark = needs_browser


def test_a_page_shows_differences_of_configurations_and_outlives_the_daemon(
    browser: Browser, tmp_path: Path
) -> None:
    """Changed files are shown before and after they are loaded. While the daemon is away the page says so; it
    continues by itself, without a reload and without signing in again.
    """
    workspace = a_dashboard_workspace(tmp_path)
    with (
        a_relay() as relay,
        an_api(workspace) as first_api,
        a_tab(browser, replace(first_api, port=relay.port)) as tab,
    ):
        relay.target = first_api.port
        tab.sign_in(TOKEN)
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("max_workers: 4", "max_workers: 5"))
        tab.open("/ui/config")
        changes_on_disk = tab.page.get_by_role("region", name="On disk, not in force")
        expect(
            changes_on_disk.locator(".changed", has_text="service.max_workers: 4 → 5").first
        ).to_be_visible()
        workspace.json("system", "reload", "--lock")
        tab.page.reload()
        history = tab.page.get_by_role("region", name="History")
        history.get_by_role("button", name="Difference of").first.click()
        difference = history.get_by_label("Difference", exact=True)
        expect(difference.locator(".changed", has_text="service.max_workers: 4 → 5")).to_be_visible()
        expect(changes_on_disk).to_have_count(0)

        tab.open("/ui")
        expect(tab.page.locator("[aria-busy]")).to_have_count(0)
        tab.page.evaluate("window.sameDocument = true")
        relay.target = None
        first_api.daemon.end()
        notice = tab.page.get_by_text("The gateway does not answer.")
        expect(notice).to_be_visible()
        with an_api(workspace) as second_api:
            relay.target = second_api.port
            expect(notice).not_to_be_visible()
            second_api.ended(second_api.post("/pipeline/broken")["job_id"])
            failures = tab.page.get_by_role("region", name="Failed since yesterday")
            expect(failures).to_contain_text("second: the printer does not answer")
            assert tab.page.evaluate("window.sameDocument") is True
