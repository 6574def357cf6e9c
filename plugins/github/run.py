#!/usr/bin/env python3
"""The github plugin: webhook deliveries of GitHub as events that routes can tell apart.

The signature is checked before a delivery gets here, by Ductile's webhook listener.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from urllib.parse import parse_qs

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

NAME = re.compile(r"[a-z][a-z0-9_]*")

plugin = Plugin()


@plugin.command
def handle(request: Request) -> str:
    event = header(request, "x-github-event")
    payload = delivered(request.payload)
    if event == "ping":
        return f"pong: {payload.get('zen') or 'GitHub can reach this gateway'}"
    action = payload.get("action")
    kind = f"{event}.{action}" if isinstance(action, str) and NAME.fullmatch(action) else event
    about = summary(event, payload, request)
    if why := unwanted(kind, event, about, request.config):
        return why
    request.emit(f"github.{kind}", {**payload, "github": about}, dedupe_key=about.get("delivery"))
    return f"github.{kind}"


@plugin.command
def health(request: Request) -> str:
    names(request.config, "events")
    names(request.config, "repositories")
    return "healthy"


def header(request: Request, name: str) -> str:
    value = request.headers.get(name, "")
    if not NAME.fullmatch(value):
        raise Failure(f"this is no delivery of GitHub: the header {name} is missing or odd", retry=False)
    return value


def delivered(payload: dict[str, Any]) -> dict[str, Any]:
    """The delivery itself; GitHub can also send it as a form with one field."""
    body = payload.get("body")
    if len(payload) != 1 or not isinstance(body, str) or not body.startswith("payload="):
        return payload
    try:
        decoded = json.loads(parse_qs(body, strict_parsing=True)["payload"][0])
    except (ValueError, KeyError) as error:
        raise Failure(f"the form holds no delivery: {error}", retry=False) from None
    if not isinstance(decoded, dict):
        raise Failure("the form holds no delivery", retry=False)
    return decoded


def summary(event: str, payload: dict[str, Any], request: Request) -> dict[str, Any]:
    """What most rules ask for, in one place whatever the event is; what does not apply is left out."""
    subject = next((key for key in ("pull_request", "issue", "release") if key in payload), "")
    ref = payload.get("ref")
    pairs = {
        "event": event,
        "action": payload.get("action"),
        "delivery": request.headers.get("x-github-delivery"),
        "repository": within(payload, "repository", "full_name"),
        "sender": within(payload, "sender", "login"),
        "branch": ref.removeprefix("refs/heads/") if isinstance(ref, str) else None,
        "number": within(payload, subject, "number"),
        "title": within(payload, subject, "title"),
        "url": within(payload, subject, "html_url") or payload.get("compare"),
    }
    return {name: value for name, value in pairs.items() if value is not None}


def within(payload: dict[str, Any], key: str, name: str) -> Any:
    part = payload.get(key)
    return part.get(name) if isinstance(part, dict) else None


def unwanted(kind: str, event: str, about: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Why a delivery is passed over; None if it is wanted."""
    events, repositories = names(config, "events"), names(config, "repositories")
    if events and kind not in events and event not in events:
        return f"passed over: {kind} is not among `events`"
    repository = about.get("repository")
    if repositories and repository not in repositories:
        return f"passed over: {repository or 'a delivery without a repository'} is not among `repositories`"
    return None


def names(config: dict[str, Any], key: str) -> list[str]:
    listed = config.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise Failure(f"`{key}` in the plugin's config has to be a list of texts", retry=False)
    return listed


plugin.run()
