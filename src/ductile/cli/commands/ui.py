"""`ductile ui …`"""

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
    local="the link signs in with all rights, so only the machine of the daemon gets one",
)
def open_dashboard(invocation: Invocation) -> CommandResult:
    response = request_daemon(invocation)

    def text(_: Console) -> str:
        shown = f"{response['url']}\nValid once, within {response['valid_seconds']} seconds."
        if _has_screen() and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(response["url"])
        return shown

    return CommandResult(response, text)


def _has_screen() -> bool:
    """Whether a window can be opened for the user: not in a remote shell, where it would open elsewhere."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
