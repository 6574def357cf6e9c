#!/usr/bin/env python3
"""The google_calendar plugin: changes and upcoming events of a calendar as events, and new entries."""

from __future__ import annotations

import base64
import hashlib
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
import oauth2
from ductile_sdk import Failure, Plugin, Request

from api import Api, Refused

UTC = timezone.utc  # noqa: UP017 - older Pythons
GONE, CONFLICT = 410, 409
#: Events of one job; Ductile accepts at most 1000.
MAX_EVENTS = 900
FIELDS = (
    "summary",
    "description",
    "location",
    "status",
    "updated",
    "etag",
    "recurringEventId",
    "transparency",
)

plugin = Plugin()
oauth2.add_commands(plugin, lambda request: Api(request).account)


@plugin.command
def poll(request: Request) -> str:
    """Emit what has changed since the last poll. The first one only notes where it begins."""
    api = Api(request)
    token, newest = request.state.get("sync_token"), str(request.state.get("newest") or "")
    resync = ""
    try:
        items, next_token = changes(api, token)
    except Refused as refused:
        if refused.status != GONE or token is None:
            raise
        resync = ", after a full sync: Google had forgotten where we were"
        items, next_token = changes(api, None)
        token = None
    first = not newest
    # A full sync lists everything: what we knew before is not emitted again.
    new = [item for item in items if token is not None or str(item.get("updated") or "") > newest]
    if first and not api.settings.emit_existing:
        new = []
    if len(new) > MAX_EVENTS:
        request.log(f"{len(new) - MAX_EVENTS} changes more than a job may emit are left out", "error")
    for item in new[:MAX_EVENTS]:
        emit(request, item)
    newest = max([newest, *(str(item.get("updated") or "") for item in items)])
    newest = newest or now().strftime("%Y-%m-%dT%H:%M:%S.000Z")
    # Without a change the old token stays valid: not every poll has to be a fact.
    quiet = not items and token is not None
    remember(request, api, **({} if quiet else {"sync_token": next_token, "newest": newest}))
    return f"{len(new[:MAX_EVENTS])} changes{resync}"


@plugin.command
def upcoming(request: Request) -> str:
    """Emit each event that begins soon, once."""
    api = Api(request)
    minutes = request.payload.get("minutes", api.settings.minutes)
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or minutes <= 0:
        raise Failure("`minutes` has to be a number above 0", retry=False)
    start, end = now(), now() + timedelta(minutes=minutes)
    query = {"singleEvents": "true", "orderBy": "startTime", "timeMin": iso(start), "timeMax": iso(end)}
    found = [item for page in api.events(**query) for item in page.get("items") or []]
    known = {**(request.state.get("announced") or {})}
    count = 0
    for item in found:
        begins = begin_of(item)
        key = f"{item['id']}:{begins}"
        if item.get("status") == "cancelled" or key in known or not start <= instant(begins) <= end:
            continue  # one that runs already overlaps the time too
        known[key] = begins
        count += 1
        request.emit(
            "google_calendar.upcoming", shown(request, item), dedupe_key=f"google_calendar:upcoming:{key}"
        )
    kept = {key: begins for key, begins in known.items() if instant(begins) > start - timedelta(days=1)}
    if kept != (request.state.get("announced") or {}):
        remember(request, api, announced=kept)
    return f"{count} upcoming"


@plugin.command
def create_event(request: Request) -> dict[str, Any]:
    """Create an entry. Its id is made of the key, so that a repetition finds the first one."""
    api, payload = Api(request), request.payload
    if not isinstance(payload.get("summary"), str) or not payload["summary"].strip():
        raise Failure("`summary` is missing in the payload", retry=False)
    wanted = {"start": moment(payload, "start"), "end": moment(payload, "end")}
    fields = {
        name: payload[name]
        for name in ("description", "location", "attendees", "reminders")
        if name in payload
    }
    key = (
        payload.get("key")
        or request.event.get("dedupe_key")
        or request.event.get("event_id")
        or request.job_id
    )
    body = {
        "id": event_id(api.settings.calendar, str(key)),
        "summary": payload["summary"],
        **wanted,
        **fields,
    }
    created = True
    try:
        entry = api.json("POST", api.events_url, body=body)
    except Refused as refused:
        if refused.status != CONFLICT:
            raise
        created = False
        entry = api.json("GET", f"{api.events_url}/{body['id']}")
    about = {**shown(request, entry), "created": created}
    request.emit("google_calendar.created", about, dedupe_key=f"google_calendar:created:{body['id']}")
    if api.service_token != (request.state.get("service_account") or {}):
        request.remember(service_account=api.service_token)
    return about


@plugin.command
def health(request: Request) -> str:
    api = Api(request)
    if api.settings.service_account is not None:
        return f"healthy, as {api.settings.service_account['client_email']}"
    if api.account.grant is None:
        return f"healthy, but no account is connected: run `ductile plugin authorize {request.instance}`"
    return "healthy, connected"


def changes(api: Api, token: str | None) -> tuple[list[dict[str, Any]], str]:
    """All changes since a token, or all entries without one; and the next token."""
    query = {"singleEvents": "true", **({"syncToken": token} if token else {})}
    items, next_token = [], ""
    for page in api.events(**query):
        items += [item for item in page.get("items") or [] if isinstance(item, dict) and item.get("id")]
        next_token = page.get("nextSyncToken") or next_token
    if not next_token:
        raise Failure("Google gave no token for the next poll")
    return items, next_token


def remember(request: Request, api: Api, **values: Any) -> None:
    """Each poll that found something is a fact, and a fact is the whole state."""
    whole = {**request.state, **values}
    if api.settings.service_account is not None:
        whole["service_account"] = api.service_token
    elif api.account.document:
        whole["oauth"] = api.account.document
    if whole != request.state:
        request.remember(**whole)


def emit(request: Request, item: dict[str, Any]) -> None:
    deleted = item.get("status") == "cancelled"
    kind = "google_calendar.deleted" if deleted else "google_calendar.changed"
    version = item.get("updated") or item.get("etag") or ""
    request.emit(kind, shown(request, item), dedupe_key=f"google_calendar:{item['id']}:{version}")


def shown(request: Request, item: dict[str, Any]) -> dict[str, Any]:
    about = {name: item[name] for name in FIELDS if name in item}
    people = [each.get("email") for each in item.get("attendees") or [] if isinstance(each, dict)]
    return {
        "id": item["id"],
        "calendar": request.config.get("calendar", "primary"),
        **about,
        **({"start": begin_of(item)} if item.get("start") else {}),
        **({"end": begin_of(item, "end")} if item.get("end") else {}),
        **({"attendees": people} if people else {}),
        **({"url": item["htmlLink"]} if item.get("htmlLink") else {}),
    }


def begin_of(item: dict[str, Any], key: str = "start") -> str:
    """The instant, or the date of an event that lasts whole days."""
    place = item.get(key) or {}
    return str(place.get("dateTime") or place.get("date") or "")


def instant(text: str) -> datetime:
    read = datetime.fromisoformat(text.replace("Z", "+00:00"))  # noqa: FURB162 - older Pythons
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def moment(payload: dict[str, Any], key: str) -> dict[str, str]:
    """A date for whole days, else an instant with a time zone, or with `time_zone`."""
    text, zone = payload.get(key), payload.get("time_zone")
    try:
        read = datetime.fromisoformat(str(text).replace("Z", "+00:00"))  # noqa: FURB162 - older Pythons
    except ValueError:
        raise Failure(
            f"`{key}` has to be a date or an instant such as 2026-01-31T09:00:00+01:00", retry=False
        ) from None
    if len(str(text)) == len("2026-01-31"):
        return {"date": str(text)}
    if read.tzinfo is None and not zone:
        raise Failure(f"`{key}` has no time zone: add one, such as +01:00, or give `time_zone`", retry=False)
    return {"dateTime": str(text), **({"timeZone": str(zone)} if zone else {})}


def event_id(calendar: str, key: str) -> str:
    """An id as Google accepts it: lower-case base32hex."""
    digest = hashlib.sha256(f"{calendar}\0{key}".encode()).digest()
    return base64.b32hexencode(digest).decode().rstrip("=").lower()


def now() -> datetime:
    return datetime.now(UTC)


def iso(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


plugin.run()
