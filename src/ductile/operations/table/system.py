"""Rows: the daemon, its configuration and its access tokens."""

from __future__ import annotations

from typing import Any

from ductile.operations.operation import SYSTEM_RO, SYSTEM_RW, get, post
from ductile.operations.table.row import exclusive, read

SYSTEM = (
    read(
        "system.status",
        "system.status:show_status",
        "The daemon, the queue and every plugin",
        SYSTEM_RO,
        get("/system/status"),
    ),
    exclusive(
        "system.health",
        "plugins.health:check_health",
        "Run the health command of plugins",
        SYSTEM_RW,
        post("/system/health", message="The plugins were asked.", statuses=(200, 404)),
    ),
    read(
        "system.doctor",
        "diagnose.doctor:doctor",
        "Problems of this installation, and how to fix them",
        SYSTEM_RO,
        get("/system/doctor"),
    ),
    read(
        "system.digest",
        "system.digest:show_digest",
        "What ran, failed, was skipped, waits and was changed since an instant",
        SYSTEM_RO,
        get("/system/digest"),
    ),
    read(
        "system.selfcheck",
        "system.maintenance:selfcheck",
        "Check the invariants of the store",
        SYSTEM_RO,
        get("/system/selfcheck"),
    ),
    exclusive(
        "system.sweep",
        "system.maintenance:sweep",
        "Remove expired data now",
        SYSTEM_RW,
        post("/system/sweep", message="Expired data was removed."),
    ),
    # Waits for a drain. The switch itself is shielded from the cancellation.
    exclusive(
        "system.reload",
        "system.lifecycle:reload",
        "Load the configuration again and switch to it, or keep the old one",
        SYSTEM_RW,
        post("/system/reload", message="The new configuration is in force.", statuses=(200, 409, 422, 503)),
        waits=True,
    ),
    exclusive("system.stop", "system.lifecycle:stop", "Stop the daemon", SYSTEM_RW),
    read(
        "system.breaker",
        "system.breakers:show_breakers",
        "The circuit breakers of a plugin",
        SYSTEM_RO,
        get("/system/breaker/{plugin}", statuses=(200, 404)),
    ),
    exclusive(
        "system.reset",
        "system.breakers:reset_breakers",
        "Close the circuit breakers of a plugin",
        SYSTEM_RW,
        post(
            "/system/breaker/{plugin}/reset",
            message="The circuit breakers of the plugin are closed.",
            statuses=(200, 404),
        ),
    ),
)

_ONE_TOKEN: dict[str, Any] = {"tag": "tokens", "statuses": (200, 403, 404, 409, 422)}
TOKENS = (
    exclusive(
        "token.list",
        "tokens.manage:list_tokens",
        "Tokens and shared secrets, without their values",
        SYSTEM_RO,
        get("/tokens", tag="tokens"),
    ),
    exclusive(
        "token.show",
        "tokens.manage:show_token",
        "One token or shared secret, without its value",
        SYSTEM_RO,
        get("/tokens/{name}", message="The token.", tag="tokens", statuses=(200, 404)),
    ),
    exclusive(
        "token.create",
        "tokens.manage:create_token",
        "Create a token, in force at once; its value is returned only once",
        SYSTEM_RW,
        post("/tokens", message="The token is in force.", tag="tokens", statuses=(200, 403, 409, 422)),
    ),
    exclusive(
        "token.rotate",
        "tokens.manage:rotate_token",
        "Give a token a new secret; the old one stays valid for a time",
        SYSTEM_RW,
        post("/tokens/{name}/rotate", message="The new secret is in force.", **_ONE_TOKEN),
    ),
    exclusive(
        "token.revoke",
        "tokens.manage:revoke_token",
        "Revoke a token: it is refused from now on",
        SYSTEM_RW,
        post("/tokens/{name}/revoke", message="The token is refused from now on.", **_ONE_TOKEN),
    ),
    # For the command line of the same machine, which has changed the files itself.
    exclusive(
        "token.refresh",
        "tokens.manage:refresh_token",
        "Take one token from the configuration on disk, and nothing else",
        SYSTEM_RW,
    ),
    # The right to call it is the right to use the control socket.
    exclusive(
        "ui.link",
        "tokens.sign_in:create_sign_in_link",
        "A link that opens the dashboard, signed in; valid once, for a minute",
        SYSTEM_RW,
    ),
)
