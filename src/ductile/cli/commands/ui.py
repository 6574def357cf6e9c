"""`ductile ui …`: opens the dashboard."""

from __future__ import annotations

import os
import sys

from ductile.cli.client import request_daemon
from ductile.cli.console.console import Console
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Example, action


@action(
    "open",
    "open the dashboard in a browser, signed in",
    "ui.link",
    about="The link is valid once, within a minute, and signs in with all rights. On a machine without a "
    "screen it is only printed. From elsewhere, open /ui of the gateway and sign in with an access token.",
    examples=(Example("ductile ui open", "print the link, and open it where there is a screen"),),
    local_reason="the link signs in with all rights, so only the machine of the daemon gets one",
)
def open_dashboard(invocation: Invocation) -> CommandResult:
    response = request_daemon(invocation)

    def text(_: Console) -> str:
        has_screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        # In a remote shell the browser would open on the other machine.
        if has_screen and "SSH_CONNECTION" not in os.environ and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(response["url"])
        return f"{response['url']}\nValid once, within {response['valid_seconds']} seconds."

    return CommandResult(response, text)
