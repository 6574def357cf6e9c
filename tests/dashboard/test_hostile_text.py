"""Text of plugins, payloads and people never becomes markup."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from builders.browsers import Tab, needs_browser
from builders.dashboards import HOSTILE, TOKEN, a_dashboard_workspace, hostile_answer
from builders.http import Api, an_api

pytestmark = needs_browser

SET_MARKUP = """() => {
  try { document.body.innerHTML = "<b>x</b>"; return "allowed"; } catch (error) { return error.name; }
}"""
ADD_SCRIPT = """() => {
  const script = document.createElement("script");
  try { script.textContent = "window.hacked = 1"; } catch {}
  document.body.append(script);
}"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Start a daemon with a plugin whose texts are all markup."""
    workspace = a_dashboard_workspace(tmp_path_factory.mktemp("hostile"))
    workspace.plugin("rogue", hostile_answer())
    workspace.config.write_text(
        workspace.config.read_text().replace("  greeter: {}\n", "  greeter: {}\n  rogue: {}\n")
    )
    with an_api(workspace) as api:
        yield api


def test_markup_is_shown_as_text_and_does_nothing(tab: Tab, api: Api) -> None:
    """Markup is text in payloads, results, errors, stderr, log lines, keys, dedupe keys and addresses."""
    body = {"payload": {HOSTILE: HOSTILE, "list": [HOSTILE]}, "dedupe_key": HOSTILE}
    job_id = api.post("/plugin/rogue/handle", body)["job_id"]
    api.ended(job_id)
    tab.sign_in(TOKEN)
    for path in ("/ui", "/ui/jobs", "/ui/jobs?list=log", f"/ui/job/{job_id}", f"/ui/jobs?reason={HOSTILE}"):
        tab.open(path)
        expect(tab.page.locator("main").get_by_text(HOSTILE).first).to_be_visible()
        assert tab.page.locator("main img, main script").count() == 0
        assert tab.page.evaluate("window.hacked") is None
    tab.open(f"/ui/job/{job_id}")
    for label in ("Input", "Output", "stderr", "Plugin log"):
        expect(tab.page.get_by_label(label, exact=True)).to_contain_text("onerror")


def test_the_browser_itself_refuses_markup_and_inline_scripts(tab: Tab) -> None:
    """The content security policy protects against a mistake that the lint misses."""
    tab.sign_in(TOKEN)
    tab.open()
    expect(tab.page.get_by_role("heading", name="Now")).to_be_visible()
    result = tab.page.evaluate(SET_MARKUP)
    assert result == "TypeError"
    tab.page.evaluate(ADD_SCRIPT)
    assert tab.page.evaluate("window.hacked") is None
    tab.errors.clear()
