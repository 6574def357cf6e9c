"""The actions of the dashboard, and the accessibility of its pages."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from builders.browsers import Tab, a_tab, needs_browser
from builders.dashboards import TOKEN
from builders.http import Api
from builders.services import Reply, a_service

pytestmark = needs_browser

PAGES = (
    ("/ui", "Now"),
    ("/ui/jobs", "Jobs"),
    ("/ui/jobs?list=log", "Jobs"),
    ("/ui/figures", "Figures"),
    ("/ui/schedules", "Schedules"),
    ("/ui/schedule/echo/hourly", "echo hourly"),
    ("/ui/plugins", "Plugins"),
    ("/ui/plugin/greeter", "greeter"),
    ("/ui/webhooks", "Webhooks"),
    ("/ui/config", "Configuration"),
    ("/ui/nowhere", None),
)


def test_a_plugin_is_run_by_its_form(tab: Tab) -> None:
    """The form is made from the schema of the input; values arrive with their types."""
    tab.sign_in(TOKEN)
    tab.open("/ui/plugin/greeter")
    tab.page.get_by_label("name").fill("Grace")
    tab.page.get_by_label("times").fill("3")
    tab.page.get_by_label("language").select_option("de")
    tab.page.get_by_role("button", name="Run greeter handle").click()
    expect(tab.page.get_by_label("Result")).to_contain_text("hello Grace")
    tab.page.get_by_role("link", name="Open the job").click()
    payload = tab.page.get_by_label("Input", exact=True)
    expect(payload).to_contain_text('"times": 3')
    expect(payload).to_contain_text('"language": "de"')


def test_a_schedule_is_paused_and_resumed(tab: Tab, api: Api) -> None:
    tab.sign_in(TOKEN)
    tab.open("/ui/schedules")
    tab.page.get_by_role("button", name="Pause echo nightly").click()
    expect(tab.page.get_by_role("button", name="Resume echo nightly")).to_be_visible()
    rows = {row["id"]: row for row in api.get("/schedules")["schedules"]}
    assert rows["nightly"]["paused_at"] is not None
    tab.page.get_by_role("button", name="Resume echo nightly").click()
    expect(tab.page.get_by_role("button", name="Pause echo nightly")).to_be_visible()


def test_the_calendar_tells_failed_runs_from_others(tab: Tab, api: Api) -> None:
    tab.sign_in(TOKEN)
    tab.open("/ui/schedules")
    calendar = tab.page.get_by_label("Calendar")
    expect(calendar.locator(".dot.ran")).to_have_count(1)  # `every` runs when it is first seen
    tab.page.get_by_role("button", name="Run backup weekly now").click()
    expect(calendar.locator(".dot.failed")).to_have_count(1)
    expect(calendar.get_by_text("failed")).to_be_visible()
    expect(calendar.locator(".dot.ran")).to_have_count(1)


#: Begins to read a response whose body does not end, and aborts.
ABANDONED = """async () => {
  const main = document.querySelector("script[type=module]").src;
  const { get } = await import(main.replace("main.js", "api.js"));
  const controller = new AbortController();
  window.fetch = async (_address, { signal }) => new Response(new ReadableStream({
    start(body) { signal.addEventListener("abort", () => body.error(signal.reason)); },
  }));
  const response = get("/jobs", {}, { signal: controller.signal });
  setTimeout(() => controller.abort(), 10);
  return response.then((body) => JSON.stringify(body), (error) => error.name);
}"""


def test_an_answer_that_is_no_longer_wanted_is_not_taken_for_an_empty_one(tab: Tab) -> None:
    """A page sends a new request after a change, also while it still reads the response to the last one."""
    tab.sign_in(TOKEN)
    tab.open("/ui/schedules")
    expect(tab.page.locator("h1")).to_be_visible()
    assert tab.page.evaluate(ABANDONED) == "AbortError"


def test_a_lost_delivery_is_sent_again(tab: Tab, api: Api) -> None:
    """A receiver that has failed gets the delivery when it works again."""
    statuses = [500]
    with a_service(lambda _: Reply(status=statuses[-1])) as receiver:
        body = {"state_webhook_url": f"{receiver.url}/told", "state_webhook_events": ["done"]}
        job_id = api.post("/plugin/echo/handle", body)["job_id"]
        api.daemon.wait_for("delivery.dropped", lambda line: line["job_id"] == job_id)
        statuses.append(200)
        tab.sign_in(TOKEN)
        tab.open("/ui/webhooks?status=dropped")
        tab.page.get_by_role("button", name="Resend done to").click()
        api.daemon.wait_for("delivery.delivered", lambda line: line["job_id"] == job_id)
    assert len(receiver.requests) == 2


def test_many_jobs_are_retried_after_their_number_was_shown(tab: Tab, api: Api) -> None:
    for _ in range(3):
        api.ended(api.post("/plugin/printer/handle")["job_id"])
    tab.sign_in(TOKEN)
    tab.open("/ui/jobs?status=failed&plugin=printer")
    expect(tab.page.locator("[data-row]")).to_have_count(3)
    tab.page.get_by_role("button", name="Retry all that match").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Retry 3 jobs").click()
    expect(tab.page.get_by_role("dialog")).not_to_be_visible()
    api.daemon.wait_until(lambda: sum(line["signal"] == "job.failed" for line in api.daemon.lines) >= 6)


def test_jobs_are_searched_as_one_types(tab: Tab, api: Api) -> None:
    """Jobs are found by words of stderr; the search is part of the address."""
    job_id = api.post("/plugin/greeter/handle", {"payload": {"name": "Hypatia"}})["job_id"]
    api.ended(job_id)
    tab.sign_in(TOKEN)
    tab.open("/ui/jobs")
    expect(tab.page.get_by_role("searchbox")).to_be_visible()
    tab.page.keyboard.press("/")
    expect(tab.page.get_by_role("searchbox")).to_be_focused()
    tab.page.keyboard.type("hypatia")
    expect(tab.page.locator("[data-row]")).to_have_count(1)
    expect(tab.page.locator(f"[data-row] a[href='/ui/job/{job_id}']").first).to_be_visible()
    expect(tab.page).to_have_url(f"{tab.origin}/ui/jobs?query=hypatia")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark"), (2000, "light")])
def test_every_page_can_be_used_by_everyone(browser: Browser, api: Api, width: int, scheme: str) -> None:
    """The rules of axe are kept in any width, light or dark, and no page is wider than the screen."""
    job_id = api.post("/pipeline/broken")["job_id"]
    api.ended(job_id)
    with a_tab(browser, api, width=width, scheme=scheme) as tab:
        assert_accessible(tab, "/ui", "Sign in to Ductile", width)
        tab.sign_in(TOKEN)
        run_paths = (f"/ui/job/{job_id}", f"/ui/job/{job_id}?view=graph&step=second")
        for path, heading in (*PAGES, *((path, "pipeline broken") for path in run_paths)):
            assert_accessible(tab, path, heading, width)


def assert_accessible(tab: Tab, path: str, heading: str | None, width: int) -> None:
    tab.open(path)
    if heading is not None:
        expect(tab.page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    expect(tab.page.locator("[aria-busy]")).to_have_count(0)
    result = Axe().run(tab.page)
    assert result.violations_count == 0, f"{path} {width}: {result.generate_report()}"
    excess = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert excess <= 0, f"{path} {width}"
