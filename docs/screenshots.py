#!/usr/bin/env python3
"""Writes the pictures of the dashboard in docs/images/ with the browser and the daemon of the tests.

Run it from the checkout: `PYTHONPATH=tests .venv/bin/python docs/screenshots.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import expect

from builders.browsers import a_browser, a_tab
from builders.dashboards import TOKEN, a_dashboard_workspace
from builders.http import an_api
from builders.many_jobs import fill_store

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        workspace = a_dashboard_workspace(home)
        fill_store(workspace, 5_000)
        with an_api(workspace) as api, a_browser() as browser:
            failed = api.post("/pipeline/broken")["job_id"]
            api.ended(failed)
            payload = {"customer": "Ada", "until": str(home / "go"), "total": 30}
            api.post("/pipeline/order", {"payload": payload})
            with a_tab(browser, api, height=720) as tab:
                tab.sign_in(TOKEN)
                for name, path in (
                    ("dashboard-now", "/ui"),
                    ("dashboard-failed", f"/ui/job/{failed}"),
                    ("dashboard-figures", "/ui/figures"),
                ):
                    tab.open(path)
                    expect(tab.page.locator("h1")).to_be_visible()
                    expect(tab.page.locator("[aria-busy]")).to_have_count(0)
                    tab.page.screenshot(path=str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main()
