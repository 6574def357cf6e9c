#!/usr/bin/env python3
"""The withings plugin: measures, sleep and activity of a Withings account as events."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qs

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
import oauth2
from ductile_sdk import Failure, Plugin, Request

from api import APPLI, Api, read_settings

UTC = timezone.utc  # noqa: UP017 - older Pythons
DAY = 86400
#: Withings' clock and ours differ, and rows may become visible a little after their time: what was modified
#: in the last seconds before the newest row is asked for again, and known by its version.
OVERLAP = 300
#: Events of one job; Ductile accepts at most 1000.
MAX_EVENTS = 900

#: The measures of `getmeas`, by number.
MEASURES = {
    1: "weight_kg",
    4: "height_m",
    5: "fat_free_mass_kg",
    6: "fat_ratio_percent",
    8: "fat_mass_kg",
    9: "diastolic_mmhg",
    10: "systolic_mmhg",
    11: "pulse_bpm",
    12: "temperature_c",
    54: "spo2_percent",
    71: "body_temperature_c",
    73: "skin_temperature_c",
    76: "muscle_mass_kg",
    77: "hydration_kg",
    88: "bone_mass_kg",
    91: "pulse_wave_velocity_ms",
    123: "vo2_max",
    155: "vascular_age",
    170: "visceral_fat",
    226: "basal_metabolic_rate",
    227: "metabolic_age",
}
WEIGHT = 1
#: The device uploaded it and is not sure that it belongs to this user; later it may be attributed.
AMBIGUOUS = (1, 4)

plugin = Plugin()
oauth2.add_commands(plugin, lambda request: Api(request).account)


class Found(NamedTuple):
    """One row of Withings as an event."""

    type: str
    id: str
    #: Tells a changed row from the one before.
    version: str
    modified: int
    payload: dict[str, Any]


@plugin.command
def poll(request: Request) -> str:
    return sync(request, read_settings(request).data)


@plugin.command
def handle(request: Request) -> str:
    """Only which kind of data is new is taken from the notification; the data itself comes from the API."""
    body = request.payload.get("body")
    form = {name: values[0] for name, values in parse_qs(body if isinstance(body, str) else "").items()}
    appli = form.get("appli") or str(request.payload.get("appli", ""))
    userid = form.get("userid") or str(request.payload.get("userid", ""))
    kinds = tuple(kind for kind in read_settings(request).data if appli in APPLI[kind])
    if not appli.isdigit():
        raise Failure("this is no notification of Withings: `appli` is missing", retry=False)
    grant = Api(request).account.grant or {}
    if userid != str(grant.get("userid")):
        return "passed over: it is about another user"
    return sync(request, kinds) if kinds else f"passed over: appli {appli} is not among `data`"


@plugin.command
def sync_weight(request: Request) -> str:
    api = Api(request)
    since = instant_of(request.payload.get("since"))
    groups = api.rows("measure", meastypes=str(WEIGHT), startdate=since, enddate=int(time.time()))
    count = 0
    for group in groups:
        values = read_measures(group)
        if "weight_kg" in values and group.get("attrib") not in AMBIGUOUS:
            count += 1
            about = {"id": str(group["grpid"]), "at": iso(group["date"]), "kilograms": values["weight_kg"]}
            request.emit("withings.weight", about, dedupe_key=f"withings:weight:{group['grpid']}")
        if count == MAX_EVENTS:
            request.log(f"more than {MAX_EVENTS} weights: only the first are emitted", "warn")
            break
    return f"{count} weights since {iso(since)}"


@plugin.command
def subscribe(request: Request) -> str:
    api = Api(request)
    url, wanted = api.callback_url(), {int(each) for kind in api.settings.data for each in APPLI[kind]}
    known = {int(each["appli"]) for each in api.subscriptions() if each.get("callbackurl") == url}
    for appli in sorted(wanted - known):
        api.request("notify", action="subscribe", callbackurl=url, appli=appli)
    return f"subscribed to {sorted(wanted)}, {len(wanted & known)} of them before"


@plugin.command
def unsubscribe(request: Request) -> str:
    api = Api(request)
    url = api.callback_url()
    known = [int(each["appli"]) for each in api.subscriptions() if each.get("callbackurl") == url]
    for appli in known:
        api.request("notify", action="revoke", callbackurl=url, appli=appli)
    return f"ended {len(known)} subscriptions"


@plugin.command
def health(request: Request) -> str:
    grant = Api(request).account.grant
    if grant is None:
        return f"healthy, but no account is connected: run `ductile plugin authorize {request.instance}`"
    return f"healthy, connected to user {grant.get('userid')}"


def sync(request: Request, kinds: tuple[str, ...]) -> str:
    """Emit what is new or changed, oldest first, and remember how far we got."""
    api = Api(request)
    known = request.state.get("cursors") or {}
    cursors, left = {**known}, MAX_EVENTS
    for kind in kinds:
        cursors[kind], count = emit_new(request, api, kind, known.get(kind) or {}, left)
        left -= count
    if cursors != known:
        # Each poll that found something is a fact, and a fact is the whole state.
        request.remember(**{**request.state, "cursors": cursors, "oauth": api.account.document})
    return f"{MAX_EVENTS - left} new"


def emit_new(
    request: Request, api: Api, kind: str, cursor: dict[str, Any], most: int
) -> tuple[dict[str, Any], int]:
    """Emit what the cursor does not know. Returns the new cursor and how many events were emitted."""
    seen = {**(cursor.get("seen") or {})}
    newest = int(cursor.get("lastupdate") or time.time() - api.settings.history_days * DAY)
    found = fetch(api, kind, newest - OVERLAP)
    new = [each for each in found if each.id not in seen or seen[each.id][0] != each.version]
    if len(new) > most:
        request.log(f"there are {len(new) - most} more of {kind}: the next poll continues")
    # All days have the time of the answer: those that do not fit now would be passed over by the next poll.
    stays = kind == "activity" and len(new) > most
    for each in new[:most]:
        newest = newest if stays else max(newest, each.modified)
        seen[each.id] = [each.version, each.modified]
        request.emit(each.type, each.payload, dedupe_key=f"withings:{kind}:{each.id}:{each.version}")
    kept = {name: entry for name, entry in seen.items() if entry[1] >= newest - OVERLAP}
    return {"lastupdate": newest, "seen": kept}, len(new[:most])


def fetch(api: Api, kind: str, since: int) -> list[Found]:
    rows = list(api.rows(kind, lastupdate=since))
    if kind == "activity":
        # A day has no time of its change: the time at which Withings answered stands for it.
        found = [read_day(row, int(api.answered_at or time.time())) for row in rows]
    else:
        read = {"measure": read_group, "sleep": read_night}[kind]
        found = [event for row in rows if (event := read(row)) is not None]
    return sorted(found, key=lambda event: (event.modified, event.id))


def read_group(group: dict[str, Any]) -> Found | None:
    if group.get("category") not in (1, None) or group.get("attrib") in AMBIGUOUS:
        return None  # a goal of the user, or perhaps another member of the family
    about = {
        "id": str(group["grpid"]),
        "at": iso(group["date"]),
        "measures": read_measures(group),
        "device": group.get("model"),
        "attribution": group.get("attrib"),
    }
    modified = int(group.get("modified") or group["date"])
    return Found("withings.measure", str(group["grpid"]), str(modified), modified, about)


def read_measures(group: dict[str, Any]) -> dict[str, float]:
    """The values in units. A value on the wire is an integer times ten to the power of `unit`."""
    named = {}
    for each in group.get("measures") or []:
        name = MEASURES.get(each.get("type"), f"type_{each.get('type')}")
        # Through text: 72345 and -3 is 72.345 exactly, and not 72.34500000000001.
        named[name] = float(f"{each['value']}e{each['unit']}")
    return named


def read_night(night: dict[str, Any]) -> Found:
    about = {
        "id": str(night["id"]),
        "date": night.get("date"),
        "start": iso(night["startdate"]),
        "end": iso(night["enddate"]),
        "sleep": night.get("data") or {},
    }
    modified = int(night.get("modified") or night["enddate"])
    return Found("withings.sleep", str(night["id"]), str(modified), modified, about)


def read_day(day: dict[str, Any], answered_at: int) -> Found:
    left_out = ("date", "timezone", "deviceid", "hash_deviceid", "brand", "is_tracker")
    activity = {name: value for name, value in day.items() if name not in left_out}
    version = hashlib.sha256(json.dumps(activity, sort_keys=True).encode()).hexdigest()[:16]
    about = {"date": day["date"], "timezone": day.get("timezone"), "activity": activity}
    return Found("withings.activity", day["date"], version, answered_at, about)


def instant_of(given: Any) -> int:
    if given is None:
        return int(time.time()) - 30 * DAY
    try:
        read = datetime.fromisoformat(str(given).replace("Z", "+00:00"))  # noqa: FURB162 - older Pythons
    except ValueError:
        raise Failure(f"`since` has to be a date such as 2026-01-31, not {given!r}", retry=False) from None
    return int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())


def iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


plugin.run()
