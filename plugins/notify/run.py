#!/usr/bin/env python3
"""The notify plugin: messages to people, through Apprise, and each of them once.

Addresses of Apprise hold tokens. So their key in the configuration is one that Ductile masks, and no message
of this plugin quotes one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

EXIT_CONFIG = 78
TYPES = ("info", "success", "warning", "failure")
#: Where a message may stand in the payload of an event that was not made for this plugin.
MESSAGES = ("message", "text", "body", "result")
REMEMBERED = 500

plugin = Plugin()


@plugin.command
def handle(request: Request) -> str:
    name = message_id(request)
    sent = [item for item in request.state.get("sent") or [] if isinstance(item, str)]
    if name in sent:
        return "sent before"
    targets = load_targets(request)
    text, kind = message(request), message_type(request)
    title = str(request.payload.get("title") or request.config.get("title") or "")
    refused = [index for index, target in enumerate(targets) if not deliver(target, text, title, kind)]
    if len(refused) == len(targets):
        raise Failure("no address took the message")
    # Some people have it. Trying again would tell them twice, so the others are only reported.
    for index in refused:
        request.log(f"secret_urls[{index}] did not take the message", "error")
    request.remember(sent=[*sent, name][-int(request.config.get("remember", REMEMBERED)) :])
    return f"sent to {len(targets) - len(refused)} of {len(targets)}"


@plugin.command
def health(request: Request) -> str:
    return f"healthy, {len(load_targets(request))} addresses"


def message_id(request: Request) -> str:
    """The same for every delivery of the same event, and for every attempt of the same job."""
    named = request.payload.get("id"), request.event.get("dedupe_key"), request.event.get("event_id")
    return next((str(name) for name in named if name), request.job_id)


def message(request: Request) -> str:
    for key in MESSAGES:
        found = request.payload.get(key)
        if isinstance(found, str) and found.strip():
            return found
    if request.payload:
        return json.dumps(request.payload, indent=2, ensure_ascii=False)
    raise Failure("there is nothing to say: `message` is missing in the payload", retry=False)


def message_type(request: Request) -> str:
    kind = request.payload.get("type")
    return kind if kind in TYPES else "info"


def load_targets(request: Request) -> list[Any]:
    """One sender for each address, so that it is known which of them took the message."""
    urls = request.config.get("secret_urls")
    listed = [urls] if isinstance(urls, str) else urls
    if not isinstance(listed, list) or not listed or not all(isinstance(url, str) for url in listed):
        raise Failure("`secret_urls` in the plugin's config has to be a list of addresses", retry=False)
    apprise = import_apprise()
    targets = [apprise.Apprise() for _ in listed]
    for index, (target, url) in enumerate(zip(targets, listed)):  # noqa: B905 - older Pythons
        if not target.add(url):
            raise Failure(f"apprise does not understand secret_urls[{index}]", retry=False)
    return targets


def import_apprise() -> Any:
    try:
        import apprise  # noqa: PLC0415 - slow to load, and a message may have been sent before
    except ImportError:
        words = f"the package apprise is missing: {sys.executable} -m pip install apprise"
        sys.stderr.write(words + "\n")
        sys.exit(EXIT_CONFIG)
    return apprise


def deliver(target: Any, text: str, title: str, kind: str) -> bool:
    try:
        # Apprise 1 answers true or false, apprise 2 with a result that counts as the one or the other.
        return bool(target.notify(body=text, title=title, notify_type=kind))
    except Exception as error:  # noqa: BLE001 - of a library with a hundred services; its text may hold an address
        sys.stderr.write(f"a service failed with {type(error).__name__}\n")
        return False


plugin.run()
