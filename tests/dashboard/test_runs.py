"""The page of a run: progress, cause of a failure, and retry."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from builders.browsers import Tab, needs_browser
from builders.dashboards import TOKEN
from builders.http import Api

pytestmark = needs_browser


def an_order(api: Api, until: Path) -> str:
    payload = {"customer": "Ada", "until": str(until), "total": 30}
    job_id: str = api.post("/pipeline/order", {"payload": payload})["job_id"]
    return job_id


def test_a_run_is_watched_to_its_end(tab: Tab, api: Api, tmp_path: Path) -> None:
    """Steps, output and end appear without a reload of the page."""
    go = tmp_path / "go"
    run_id = an_order(api, go)
    tab.sign_in(TOKEN)
    tab.open()
    tab.page.get_by_role("region", name="Running").get_by_role("link", name="pipeline order").click()
    expect(tab.page.get_by_role("heading", name="pipeline order")).to_be_visible()
    assert tab.page.url.endswith(f"/ui/job/{run_id}")
    tab.page.evaluate("window.sameDocument = true")
    wait_step = tab.page.locator("[data-step='both/wait']")
    expect(wait_step).to_contain_text("running")
    wait_step.click()
    expect(tab.page.get_by_label("stderr")).to_contain_text("first line")
    go.touch()
    expect(wait_step).to_contain_text("succeeded")
    expect(tab.page.get_by_label("stderr")).to_contain_text("last line")
    expect(tab.page.get_by_label("Output")).to_contain_text("all of it")
    expect(tab.page.locator(".page-head .badge")).to_have_text("succeeded")
    expect(tab.page.locator("[data-step='gift']")).to_contain_text("payload.total gte 100 is false")
    assert tab.page.evaluate("window.sameDocument") is True


def test_the_graph_shows_what_became_of_every_step(tab: Tab, api: Api, tmp_path: Path) -> None:
    """The graph has nested splits and calls, and at a bypassed step the comparison that was false."""
    go = tmp_path / "go"
    go.touch()
    run_id = an_order(api, go)
    api.ended(run_id)
    tab.sign_in(TOKEN)
    tab.open(f"/ui/job/{run_id}")
    tab.page.get_by_role("tab", name="Graph").click()
    for step in ("greet", "both/wait", "both/label", "after/last"):
        expect(tab.page.locator(f".graph [data-step='{step}']")).to_contain_text("succeeded")
    gift = tab.page.locator(".graph [data-step='gift']")
    expect(gift).to_contain_text("bypassed")
    expect(gift).to_contain_text("payload.total gte 100 is false")
    gift.click()
    expect(tab.page.get_by_role("heading", name="Step gift")).to_be_visible()
    assert "view=graph" in tab.page.url
    tab.page.reload()
    expect(tab.page.get_by_role("tab", name="Graph")).to_have_attribute("aria-selected", "true")


def test_why_a_run_failed_and_trying_again(tab: Tab, api: Api) -> None:
    """The pages lead from the failed run to its cause and output, and to a retry that succeeds."""
    run_id = api.post("/pipeline/broken")["job_id"]
    api.ended(run_id)
    tab.sign_in(TOKEN)
    tab.open()
    failures = tab.page.get_by_role("region", name="Failed since yesterday")
    expect(failures).to_contain_text("second: the printer does not answer")
    failures.get_by_role("link", name="pipeline broken").click()
    explanation = tab.page.get_by_role("region", name="Why it failed")
    expect(explanation).to_contain_text("step second (printer handle")
    expect(explanation).to_contain_text("the printer does not answer")
    tab.page.locator("[data-step='second']").click()
    expect(tab.page.get_by_label("stderr")).to_contain_text("cannot reach the printer at 10.0.0.7")
    (api.workspace.directory / "demo" / "plugins" / "printer" / "mended").touch()
    tab.page.get_by_role("button", name="Retry", exact=True).click()
    expect(tab.page.get_by_role("status").filter(has_text="on the queue again")).to_be_visible()
    expect(tab.page.locator(".page-head .badge")).to_have_text("succeeded")


def test_a_running_job_is_cancelled_after_a_question(tab: Tab, api: Api, tmp_path: Path) -> None:
    run_id = an_order(api, tmp_path / "never")
    tab.sign_in(TOKEN)
    tab.open(f"/ui/job/{run_id}")
    tab.page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Keep as it is").click()
    expect(dialog).not_to_be_visible()
    tab.page.get_by_role("button", name="Cancel", exact=True).click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(tab.page.locator(".page-head .badge")).to_have_text(re.compile("dead|failed"))
    assert api.ended(run_id)["reason"] == "cancelled"


def test_a_job_is_copied_as_commands(tab: Tab, api: Api) -> None:
    """Copied commands work when they are typed; the secret is in a variable."""
    run_id = api.post("/pipeline/broken")["job_id"]
    api.ended(run_id)
    tab.sign_in(TOKEN)
    tab.open(f"/ui/job/{run_id}")
    tab.page.get_by_role("button", name="Copy as curl").click()
    expect(tab.page.locator("[data-done='Copied']")).to_be_visible()
    text = tab.page.evaluate("navigator.clipboard.readText()")
    assert text == f'curl -H "Authorization: Bearer $DUCTILE_TOKEN" {tab.origin}/job/{run_id}'
    tab.page.get_by_role("button", name="Copy command").click()
    expect(tab.page.locator("[data-copy='Copy command'][data-done='Copied']")).to_be_visible()
    assert tab.page.evaluate("navigator.clipboard.readText()") == f"ductile job show {run_id}"
