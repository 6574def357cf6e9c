"""Rows: webhooks from outside, state webhooks to receivers."""

from __future__ import annotations

from ductile.operations.operation import OWN_JOBS_RO, OWN_JOBS_RW, SYSTEM_RO, get, post
from ductile.operations.table.row import exclusive, read

WEBHOOKS = (
    read(
        "webhook.list",
        "webhooks.manage:list_webhooks",
        "The webhook endpoints",
        SYSTEM_RO,
        get("/webhooks", tag="webhooks"),
    ),
    read(
        "webhook.deliveries",
        "webhooks.manage:list_deliveries",
        "State webhooks that were sent or are due",
        OWN_JOBS_RO,
        get("/webhooks/deliveries", tag="webhooks", statuses=(200, 404, 409)),
    ),
    exclusive(
        "webhook.resend",
        "webhooks.manage:resend_delivery",
        "Send a state webhook again",
        OWN_JOBS_RW,
        post(
            "/webhooks/deliveries/{delivery_id}/resend",
            message="The state webhook is sent again.",
            tag="webhooks",
            statuses=(200, 404, 409),
        ),
    ),
    exclusive(
        "webhook.resend_many",
        "jobs.bulk:resend_deliveries",
        "Send again the state webhooks that match a filter",
        OWN_JOBS_RW,
        post("/deliveries/resend", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
)
