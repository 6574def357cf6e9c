"""rss against a real HTTP server, with feeds of many kinds."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from builders.feeds import ATOM, JSON_FEED, RDF, RSS, parse_date, rss_of
from builders.services import Reply, ServiceRequest, a_service
from builders.shipped import PluginResult, ask


@dataclass
class Follower:
    """The plugin with feeds; polls follow one another with the state that Ductile would keep."""

    config: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)

    def poll(self, seconds: float = 60) -> PluginResult:
        response = ask("rss", "poll", config=self.config, state=self.state, seconds=seconds)
        if response.kind == "ok":
            self.state |= response.state
        return response

    def titles(self) -> list[str]:
        response = self.poll()
        assert response.kind == "ok", response
        return [event["payload"]["title"] for event in response.events if event["type"] == "rss.entry"]


def serve_pages(pages: Mapping[str, Reply]) -> Any:
    return a_service(lambda request: pages.get(request.path, Reply(status=404, body=b"gone")))


def poll_document(document: bytes, content_type: str = "application/xml") -> PluginResult:
    with serve_pages({"/f": Reply(body=document, headers={"Content-Type": content_type})}) as service:
        return ask("rss", "poll", config={"feeds": [service.url + "/f"], "initial": True})


@pytest.mark.parametrize("document", [RSS, RDF, ATOM, JSON_FEED], ids=["rss", "rdf", "atom", "json"])
def test_every_kind_of_feed_has_the_same_shape(document: str) -> None:
    """Two entries are read from four formats, oldest first."""
    response = poll_document(document.encode())
    entries = [event["payload"] for event in response.events]
    assert [entry["title"] for entry in entries] == ["First & best", "Second"]
    first = entries[0]
    assert first["feed"] == "Planet"
    assert first["link"] == "https://example.org/1"
    assert first["published_at"] == "2026-02-08T10:00:00Z"
    assert first["author"] == "Ada"
    assert first["text"] == "One\nmore thing"
    assert first["categories"] == ["news"]
    assert first["enclosures"] == [
        {"url": "https://example.org/1.mp3", "media_type": "audio/mpeg", "size": 7}
    ]
    assert first["id"] == "urn:1"


def test_an_entry_is_emitted_once_and_validators_are_sent_back() -> None:
    """Entries of the first poll are not emitted; then each new entry is emitted once, also after a 304."""
    documents = {"v1": rss_of("a"), "v2": rss_of("b", "a"), "v3": rss_of("c", "b")}
    current = "v1"

    def feed(request: ServiceRequest) -> Reply:
        if request.headers.get("if-none-match") == current:
            return Reply(status=304)
        return Reply(
            body=documents[current].encode(), headers={"ETag": current, "Last-Modified": "yesterday"}
        )

    with a_service(feed) as service:
        follower = Follower({"feeds": [service.url]})
        titles = []
        for version in ("v1", "v1", "v2", "v2", "v3", "v2"):
            current = version
            titles += [follower.titles()]
    assert titles == [[], [], ["b"], [], ["c"], []]
    assert service.requests[1].headers["if-modified-since"] == "yesterday"


def test_a_broken_feed_does_not_stop_the_others_and_is_reported_once() -> None:
    pages = {"/good": Reply(body=rss_of("a").encode()), "/bad": Reply(body=b"<html><body>")}
    with serve_pages(pages) as service:
        feeds = [{"url": service.url + "/bad", "name": "Bad"}, service.url + "/good", service.url + "/gone"]
        follower = Follower({"feeds": feeds, "initial": True})
        first, second = follower.poll(), follower.poll()
        pages["/bad"] = Reply(body=rss_of("b").encode())
        third = follower.poll()
    assert first.event_types == ["rss.failed", "rss.entry", "rss.failed"]
    assert first.events[0]["payload"]["feed"] == "Bad"
    assert [report["status"] for report in first.answer["result"]["feeds"]] == ["failed", "read", "failed"]
    assert "answers 404" in first.answer["result"]["feeds"][2]["error"]
    assert [log["level"] for log in first.answer["logs"]] == ["error", "error"]
    assert second.events == []
    assert [event["payload"]["title"] for event in third.events] == ["b"]


@pytest.mark.parametrize(("status", "retry"), [(503, True), (410, False)])
def test_the_job_fails_if_every_feed_does(status: int, retry: bool) -> None:
    with a_service(lambda _: Reply(status=status)) as service:
        response = ask("rss", "poll", config={"feeds": [service.url + "/a", service.url + "/b"]})
    assert response.kind == "error"
    assert response.answer["retry"] is retry


def test_a_server_that_asks_to_wait_is_left_alone() -> None:
    """`Retry-After` as an instant is measured by the server's clock, which may be wrong by hours."""
    server_time = datetime.now(UTC) - timedelta(hours=5)
    headers = {
        "Date": format_datetime(server_time),
        "Retry-After": format_datetime(server_time + timedelta(hours=1)),
    }
    pages = {"/busy": Reply(status=429, headers=headers), "/good": Reply(body=rss_of().encode())}
    with serve_pages(pages) as service:
        follower = Follower({"feeds": [service.url + "/busy", service.url + "/good"]})
        follower.poll()
        second = follower.poll()
    assert [request.path for request in service.requests] == ["/busy", "/good", "/good"]
    assert second.answer["result"]["feeds"][0]["status"] == "waiting"


ENTITY_BOMB = '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
FILE_ENTITY = '<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
@pytest.mark.parametrize(
    "doctype",
    [ENTITY_BOMB, FILE_ENTITY, "<!-- a --><?b c?>\n" + ENTITY_BOMB, ENTITY_BOMB.replace("DOC", "DO\0C")],
)
def test_a_document_type_is_refused(doctype: str, encoding: str) -> None:
    """A document type is refused in any encoding, after comments, and with characters that XML forbids."""
    response = poll_document((doctype + rss_of("&a;")).encode(encoding))
    assert response.failed_for_good("document type declaration")


@pytest.mark.parametrize(
    ("document", "content_type", "title"),
    [
        (rss_of("caf\xe9").encode("latin-1"), "text/xml; charset=ISO-8859-1", "caf\xe9"),
        ('<?xml version="1.0" encoding="windows-1252"?>' + rss_of("\u2019"), "", "\u2019"),
        ("\ufeff" + rss_of("\xe9"), "", "\xe9"),
        (rss_of("a&nbsp;&eacute; &lt;b&gt;x&lt;/b&gt; &amp;lt;"), "", "a\xa0\xe9 x <"),
        (rss_of("a\x08\x00b"), "", "ab"),
        (rss_of("<![CDATA[<!DOCTYPE x> &nbsp;&amp; y]]>"), "", "& y"),
        ("\n\n <?xml version='1.0'?>\n" + rss_of("late"), "", "late"),
    ],
)
def test_sloppy_documents_are_read(document: str | bytes, content_type: str, title: str) -> None:
    encoding = "cp1252" if isinstance(document, str) and "1252" in document else "utf-8"
    response = poll_document(
        document if isinstance(document, bytes) else document.encode(encoding), content_type
    )
    assert [" ".join(event["payload"]["title"].split()) for event in response.events] == [
        " ".join(title.split())
    ]


def test_entries_without_an_id_are_known_by_link_or_content() -> None:
    """Entries without an id and with the same link or content are one entry."""
    item = "<item><title>{}</title><link>{}</link><description>{}</description></item>"
    first = [item.format("t", "http://x/1", ""), item.format("u", "", "text"), item.format("v", "", "text")]
    pages = {"/f": Reply(body=f"<rss><channel>{''.join(first)}</channel></rss>".encode())}
    with serve_pages(pages) as service:
        follower = Follower({"feeds": [service.url + "/f"], "initial": True})
        before = follower.titles()
        changed = [item.format("T", "http://x/1", ""), *first[1:], *first[1:], item.format("u", "", "other")]
        pages["/f"] = Reply(body=f"<rss><channel>{''.join(changed)}</channel></rss>".encode())
        after = follower.titles()
    assert (before, after) == (["v", "u", "t"], ["u"])


def test_what_is_too_much_for_one_poll_comes_with_the_next() -> None:
    """No validators are kept meanwhile, because with them the server would send no document."""

    def feed(request: ServiceRequest) -> Reply:
        if "if-none-match" in request.headers:
            return Reply(status=304)
        return Reply(body=rss_of(*(f"t{n}" for n in range(450))).encode(), headers={"ETag": "v"})

    with a_service(feed) as service:
        follower = Follower({"feeds": [service.url], "initial": True})
        polls = [follower.titles() for _ in range(4)]
    assert [len(titles) for titles in polls] == [200, 200, 50, 0]
    assert len({title for titles in polls for title in titles}) == 450


def test_the_state_is_bounded() -> None:
    """The state has all entries of the document, and the latest of the older ones."""
    pages = {"/f": Reply(body=rss_of(*(f"a{n}" for n in range(900))).encode())}
    with serve_pages(pages) as service:
        follower = Follower({"feeds": [service.url + "/f"]})
        follower.poll()
        pages["/f"] = Reply(body=rss_of(*(f"b{n}" for n in range(150))).encode())
        follower.poll()
    (state,) = follower.state["feeds"].values()
    assert len(state["seen"]) == 1000
    assert len(json.dumps(state)) < 22_000, "times the number of feeds that is below the limit of a state"


def test_a_large_or_expanding_document_is_refused() -> None:
    """A document may also become too large by decompression."""
    bomb = gzip.compress(b" " * 20_000_000)
    pages = {
        "/bomb": Reply(body=bomb, headers={"Content-Encoding": "gzip"}),
        "/large": Reply(body=b" " * 5_000_001),
        "/fine": Reply(body=gzip.compress(rss_of("a").encode()), headers={"Content-Encoding": "gzip"}),
    }
    with serve_pages(pages) as service:
        follower = Follower({"feeds": [service.url + path for path in pages], "initial": True})
        response = follower.poll()
    assert response.event_types == ["rss.failed", "rss.failed", "rss.entry"]
    assert "more than 5000000 bytes" in response.events[0]["payload"]["error"]


def test_a_feed_that_hangs_does_not_keep_the_others_waiting_for_ever() -> None:
    """The next poll begins with the feeds that were not reached."""
    released = threading.Event()

    def reply(request: ServiceRequest) -> Reply:
        if request.path == "/slow":
            released.wait(60)
        return Reply(body=rss_of(request.path).encode())

    with a_service(reply) as service:
        feeds = [service.url + "/slow", service.url + "/b"]
        follower = Follower({"feeds": feeds, "initial": True, "timeout": 50})
        first = follower.poll(seconds=8)
        released.set()
        second = follower.poll()
    assert first.event_types == ["rss.failed"]
    assert [report["url"] for report in second.answer["result"]["feeds"]] == feeds[::-1]


def test_redirects_are_followed_without_credentials() -> None:
    """A slash at the end of an address belongs to it."""
    with serve_pages({"/f/?a=b": Reply(body=rss_of("a").encode())}) as target:
        moved = {"/old": Reply(status=301, headers={"Location": target.url + "/f/?a=b#c"})}
        with serve_pages(moved) as service:
            feed = {"url": service.url + "/old", "headers": {"Authorization": "Bearer canary"}}
            response = ask("rss", "poll", config={"feeds": [feed], "initial": True})
    assert response.event_types == ["rss.entry"]
    assert service.requests[0].headers["authorization"] == "Bearer canary"
    assert "authorization" not in target.requests[0].headers


def test_links_that_run_code_are_dropped_and_relative_ones_completed() -> None:
    document = RSS.replace("https://example.org/1<", "javascript:alert(1)<").replace(
        "https://example.org/2<", "/2<"
    )
    response = poll_document(document.encode())
    links = [event["payload"]["link"] for event in response.events]
    assert links[0] is None
    assert links[1].startswith("http://127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 08 Feb 2026 10:00:00 GMT", "Sun, 8 Feb 2026 12:00:00 +0200", "Mon, 08 Feb 2026 05:00:00 EST",
        "8 Feb 26 10:00 UT", "Sunday, 08-Feb-26 10:00:00 GMT", "Sun Feb  8 10:00:00 2026",
        "2026-02-08T10:00:00Z", "2026-02-08T10:00:00.123456789+00:00", "2026-02-08 12:00:00 +0200",
        "2026-02-08T02:00-08", "20260208T100000Z", "2026-02-08 10:00:00 UTC", "2026/02/08 10:00",
        "1770544800", "1770544800000", "February 8, 2026 10:00 AM", "Feb 8, 2026 10:00", "08.02.2026 10:00",
        "Sun, 08 February 2026 10:00:00 GMT", "  Sun,\n 08 Feb 2026 10:00:00 GMT ",
    ],
)  # fmt: skip
def test_dates_of_every_form_are_read(text: str) -> None:
    """Dates have wrong names of days, short years, names of zones, numbers or words."""
    assert parse_date(text) == "2026-02-08T10:00:00Z"


@pytest.mark.parametrize(
    "text", ["", "soon", "32 Feb 2026", "2026-13-01", "99999999999999", "0000-00-00", None]
)
def test_what_is_no_date_is_null(text: str | None) -> None:
    assert parse_date(text) is None


@pytest.mark.parametrize(
    "config",
    [{}, {"feeds": []}, {"feeds": "x"}, {"feeds": ["file:///etc/passwd"]}, {"feeds": [5]},
     {"feeds": [f"http://x/{n}" for n in range(41)]}, {"feeds": ["http://x"], "timeout": "soon"}],
)  # fmt: skip
def test_faults_of_the_configuration_end_with_status_78(config: dict[str, Any]) -> None:
    response = ask("rss", "health", config=config)
    assert response.failed_for_good("`")
    assert response.exit_code == 78
