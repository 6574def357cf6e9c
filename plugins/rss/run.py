#!/usr/bin/env python3
"""The rss plugin: new entries of feeds, each of them once.

For each feed the state has the validators of its last answer and the keys of the entries that were seen. A
feed that fails is reported and does not affect the others. When the time is over, the next poll begins with
the feeds that were not reached.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_http import Client, HttpFailure, before_deadline, check_url
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from ductile_settings import read_number
from feeds import Feed, entry_key, parse_feed

NOT_MODIFIED = 304
REDIRECTS = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 5
#: Together with the keys below, less than a plugin's state may hold.
MAX_FEEDS = 40
MAX_KEYS = 1000
#: Less than an answer may hold; the rest is emitted by the next poll.
MAX_EVENTS = 200
MAX_EVENT_BYTES = 4_000_000
#: Seconds that have to be left to begin with another feed.
ENOUGH = 3.0
#: A server that asks for more waiting is asked again after this many seconds.
LONGEST_PAUSE = 86_400.0
ACCEPT = "application/atom+xml, application/rss+xml, application/feed+json, application/xml;q=0.9, */*;q=0.8"

plugin = Plugin()


class Source(NamedTuple):
    """A feed of the configuration."""

    url: str
    name: str | None
    headers: dict[str, str]


class Fetched(NamedTuple):
    content: bytes
    content_type: str
    etag: str | None
    last_modified: str | None


@plugin.command
def poll(request: Request) -> dict[str, Any]:
    sources = read_sources(request.config)
    known = request.state.get("feeds") or {}
    run = Poll(request, read_limits(request.config))
    first = next((at for at, each in enumerate(sources) if each.url == request.state.get("next")), 0)
    order = sources[first:] + sources[:first]
    states = {each.url: known[each.url] for each in sources if each.url in known}
    left_over = None
    for source in order:
        if request.seconds_left() < ENOUGH or run.is_full():
            left_over = source.url
            break
        states[source.url] = run.look_at(source, states.get(source.url))
    run.fail_if_all_did(len(sources))
    request.remember(feeds=states, next=left_over)
    return {"new": run.emitted, "feeds": run.reports}


@plugin.command
def health(request: Request) -> str:
    """Without a request: a feed that is down is the business of `poll`."""
    read_limits(request.config)
    return f"healthy, {len(read_sources(request.config))} feeds"


class Limits(NamedTuple):
    timeout: float
    max_bytes: int
    initial: bool


class Poll:
    """One look at all feeds."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self._request = request
        self._limits = limits
        self._bytes = 0
        self._failures: list[Failure] = []
        self.emitted = 0
        self.reports: list[dict[str, Any]] = []

    def is_full(self) -> bool:
        return self.emitted >= MAX_EVENTS or self._bytes >= MAX_EVENT_BYTES

    def fail_if_all_did(self, feeds: int) -> None:
        """Not if some were not reached: the state then says with which the next poll begins."""
        if len(self._failures) == feeds:
            text = "; ".join(f"{each['url']}: {each['error']}" for each in self.reports)
            raise Failure(text[:1000], retry=any(failure.retry for failure in self._failures))

    def look_at(self, source: Source, known: dict[str, Any] | None) -> dict[str, Any]:
        """Emit what is new, add the report, and return the new state of the feed."""
        before = known or {}
        if before.get("not_before", 0) > time.time():
            self.reports.append({"url": source.url, "status": "waiting", "new": 0})
            return before
        try:
            with before_deadline(self._request, 2 * self._limits.timeout):
                fetched = self._fetch(source, before)
                feed = (
                    None if fetched is None else parse_feed(fetched.content, fetched.content_type, source.url)
                )
        except Failure as failure:
            return self._failed(source, before, failure)
        if fetched is None or feed is None:
            self.reports.append({"url": source.url, "status": "not modified", "new": 0})
            return {name: value for name, value in before.items() if name != "error"}
        return self._emit(source, known, feed, fetched)

    def _failed(self, source: Source, before: dict[str, Any], failure: Failure) -> dict[str, Any]:
        """Report it. The event comes once, until the feed has worked again."""
        error = str(failure)[:500]
        self._failures.append(failure)
        self.reports.append({"url": source.url, "status": "failed", "new": 0, "error": error})
        self._request.log(f"{source.url}: {error}", "error")
        if "error" not in before:
            self._request.emit("rss.failed", {"feed": source.name, "url": source.url, "error": error})
        after = {**before, "error": error}
        if isinstance(failure, HttpFailure) and failure.wait is not None:
            after["not_before"] = time.time() + min(failure.wait, LONGEST_PAUSE)
        return after

    def _emit(
        self, source: Source, known: dict[str, Any] | None, feed: Feed, fetched: Fetched
    ) -> dict[str, Any]:
        before = (known or {}).get("seen")
        seen = dict.fromkeys(before or ())
        present = {entry_key(entry): entry for entry in feed.entries}
        fresh = {key: entry for key, entry in present.items() if key not in seen}
        waiting: set[str] = set()
        new = 0
        # Feeds begin with the newest entry; events come in the order in which things happened.
        for key, entry in reversed(fresh.items()) if before is not None or self._limits.initial else ():
            if self.is_full():
                waiting.add(key)
                continue
            self._emit_entry(source, feed, key, entry)
            new += 1
        self.reports.append({"url": source.url, "status": "read", "new": new})
        kept = [key for key in present if key not in waiting]
        older = [key for key in seen if key not in present][-max(0, MAX_KEYS - len(kept)) :]
        state: dict[str, Any] = {"seen": (older if len(kept) < MAX_KEYS else []) + kept}
        if not waiting:  # with them the server would answer that nothing has changed
            validators = {"etag": fetched.etag, "last_modified": fetched.last_modified}
            state |= {name: value for name, value in validators.items() if value is not None}
        return state

    def _emit_entry(self, source: Source, feed: Feed, key: str, entry: dict[str, Any]) -> None:
        payload = {"feed": source.name or feed.title or source.url, "feed_url": source.url, **entry}
        self._bytes += len(json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace"))
        self.emitted += 1
        self._request.emit("rss.entry", payload, dedupe_key=f"rss:{source.url[:900]}:{key}")

    def _fetch(self, source: Source, before: dict[str, Any]) -> Fetched | None:
        """Get the document, conditionally; None if it has not been modified. Redirects are followed."""
        url = source.url
        validators = {"If-None-Match": before.get("etag"), "If-Modified-Since": before.get("last_modified")}
        conditions = {name: value for name, value in validators.items() if isinstance(value, str)}
        for _ in range(MAX_REDIRECTS + 1):
            # Headers of the configuration may be credentials: they go to the configured origin only.
            own = source.headers if origin(url) == origin(source.url) else {}
            client = Client(
                url, request=self._request, timeout=self._limits.timeout, key="feeds", headers=own
            )
            headers = {"Accept": ACCEPT, "Accept-Encoding": "gzip", **conditions}
            with client.open("GET", "", headers=headers, also=(NOT_MODIFIED, *REDIRECTS)) as response:
                if response.status == NOT_MODIFIED:
                    return None
                if response.status not in REDIRECTS:
                    return Fetched(
                        response.read(self._limits.max_bytes),
                        response.headers.get("content-type", ""),
                        response.headers.get("etag"),
                        response.headers.get("last-modified"),
                    )
                url = urljoin(url, response.headers.get("location", ""))
            if urlsplit(url).scheme not in ("http", "https"):
                raise Failure("it redirects to an address that is neither http nor https", retry=False)
        raise Failure(f"more than {MAX_REDIRECTS} redirects", retry=False)


def origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def read_limits(config: dict[str, Any]) -> Limits:
    return Limits(
        timeout=read_number(config, "timeout", 15),
        max_bytes=int(read_number(config, "max_bytes", 5_000_000)),
        initial=config.get("initial") is True,
    )


def read_sources(config: dict[str, Any]) -> list[Source]:
    given = config.get("feeds")
    if not isinstance(given, list) or not given:
        raise ConfigFailure("`feeds` in the plugin's config has to be a list of addresses")
    if len(given) > MAX_FEEDS:
        words = f"`feeds` has {len(given)} entries, and one plugin follows at most {MAX_FEEDS}"
        raise ConfigFailure(f"{words}: divide them among instances with `uses: rss`")
    sources = {source.url: source for source in (read_source(each, at) for at, each in enumerate(given))}
    return list(sources.values())


def read_source(given: Any, at: int) -> Source:
    entry = {"url": given} if isinstance(given, str) else given
    if not isinstance(entry, dict):
        raise ConfigFailure(f"`feeds[{at}]` has to be an address, or {{url, name, headers}}")
    check_url(entry.get("url"), f"feeds[{at}]")
    headers = entry.get("headers") or {}
    if not isinstance(headers, dict):
        raise ConfigFailure(f"`feeds[{at}].headers` has to be a map of names and texts")
    name = entry.get("name")
    return Source(
        str(entry["url"]), None if name is None else str(name), {str(k): str(v) for k, v in headers.items()}
    )


plugin.run()
