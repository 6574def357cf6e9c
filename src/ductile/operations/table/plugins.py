"""Rows: the catalogue of plugins, their state and facts."""

from __future__ import annotations

from ductile.operations.operation import DISCOVERY, ONE_PLUGIN, PLUGIN_RO, PLUGIN_RW, SYSTEM_RW, get, post
from ductile.operations.table.row import exclusive, read

CATALOGUE = (
    read(
        "plugin.list",
        "plugins.catalogue:list_plugins",
        "Every plugin, and what may be done with it",
        DISCOVERY,
        get("/plugins", tag="catalogue"),
    ),
    read(
        "plugin.show",
        "plugins.catalogue:show_plugin",
        "One plugin: its manifest, and how it is set up here",
        ONE_PLUGIN,
        get("/plugin/{plugin}", message="The plugin.", tag="catalogue", statuses=(200, 404)),
    ),
    read(
        "system.topology",
        "plugins.topology:show_topology",
        "Which plugins, webhooks and pipelines emit and take which events",
        PLUGIN_RO,
        get("/topology", tag="catalogue"),
    ),
)

PLUGIN_RECORDS = (
    read(
        "plugin.state",
        "plugins.catalogue:plugin_state",
        "The stored state of a plugin",
        ONE_PLUGIN,
        get("/plugin/{plugin}/state", tag="catalogue", statuses=(200, 404)),
    ),
    read(
        "plugin.facts",
        "plugins.catalogue:plugin_facts",
        "The facts that a plugin has recorded",
        ONE_PLUGIN,
        get("/plugin/{plugin}/facts", tag="catalogue", statuses=(200, 404)),
    ),
    read(
        "plugin.health",
        "plugins.health:list_unhealthy_plugins",
        "Plugins whose last init failed",
        PLUGIN_RO,
        get("/plugins/unhealthy", tag="catalogue"),
    ),
    read(
        "plugin.pending",
        "system.lifecycle:pending_work",
        "Work of a plugin that has not ended",
        ONE_PLUGIN,
        get("/plugin/{plugin}/pending", tag="catalogue"),
    ),
    exclusive(
        "plugin.drain",
        "system.lifecycle:drain_plugin",
        "Let a plugin finish its accepted work",
        PLUGIN_RW,
        waits=True,
    ),
    exclusive(
        "plugin.replay",
        "plugins.replay:replay_plugin",
        "Run recorded requests of past jobs against a changed plugin, and compare the answers",
        SYSTEM_RW,
        post(
            "/replay/{plugin}",
            message="The recorded requests were replayed; nothing was stored.",
            tag="run",
            statuses=(200, 404, 422),
            waits=True,
        ),
        waits=True,
    ),
)
