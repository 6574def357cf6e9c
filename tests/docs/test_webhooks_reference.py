"""docs/reference/webhooks.md agrees with the code: presets, states, keys, headers, bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builders.jobs import a_job
from ductile.config.compile.compiler import signature_scheme
from ductile.config.schema.model import StateWebhookSettings, WebhookEndpointSettings, WebhookPreset
from ductile.core.jobs.model import JobReason
from ductile.core.jobs.settlement import StateChange, WebhookState
from ductile.core.webhooks.deliveries import MAX_DELIVERY_DELAY, PROMPT, ReceiverHealth
from ductile.core.webhooks.signatures import REPLAY_WINDOW
from ductile.engine.state_webhooks.sender import CONCURRENCY_LIMITS, MAX_IN_FLIGHT, MAX_PER_RECEIVER
from ductile.protocol.state_webhook import (
    MAX_ERROR_BYTES,
    MAX_MODEL_BYTES,
    MAX_RESULT_BYTES,
    encode_state_webhook,
)
from ductile.store.model.maintenance import Retention
from ductile.webhooks.server import BODY_SECONDS, MAX_CONNECTIONS, UNVERIFIED_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "webhooks.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)
]


def test_every_preset_is_documented_as_it_is() -> None:
    """Every preset has a row with its header and its delivery id."""
    documented = {row[0].strip("`"): row for row in ROWS if row[0].strip("`") in set(WebhookPreset)}
    assert set(documented) == set(WebhookPreset)
    for preset in WebhookPreset:
        scheme = signature_scheme(WebhookEndpointSettings(path="/x", preset=preset))
        assert documented[preset][1].strip("`").lower() == scheme.header
        field = f"`{scheme.delivery_field}` in the body" if scheme.delivery_field else "delivery_header"
        delivery_id = scheme.delivery_header or field
        assert documented[preset][4].lower().strip("`").replace("`", "") == delivery_id.replace("`", "")


def test_every_state_and_every_key_is_documented() -> None:
    """The page has all states, and its example has all keys."""
    assert [row[0].strip("`") for row in ROWS if row[0].strip("`") in set(WebhookState)] == list(WebhookState)
    example = json.loads(
        next(block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "job_id" in block)
    )
    event = StateChange(state=WebhookState.DONE, reason=JobReason.COMPLETED)
    body = encode_state_webhook(event, a_job(), attempt=1, timestamp="t", previous_state=None, model=None)
    assert list(example) == list(json.loads(body))


def test_the_bounds_are_those_of_the_code() -> None:
    assert REPLAY_WINDOW.total_seconds() == 5 * 60
    assert "within five minutes of now" in PAGE
    assert MAX_DELIVERY_DELAY.total_seconds() == 3600
    assert "at most an hour later" in PAGE
    assert MAX_PER_RECEIVER == 4
    assert "may have four requests in flight, of 256 in all" in PAGE
    assert MAX_IN_FLIGHT == 256
    assert f"within {PROMPT.total_seconds():.0f} seconds may have four" in PAGE
    assert f"together have {CONCURRENCY_LIMITS[ReceiverHealth.SLOW].total} slots" in PAGE
    assert f"all unknown ones {CONCURRENCY_LIMITS[ReceiverHealth.UNKNOWN].total}," in PAGE
    assert f"within {BODY_SECONDS:.0f} seconds" in PAGE
    assert f"{MAX_CONNECTIONS} connections are served at once" in PAGE
    assert f"{UNVERIFIED_BYTES // 1024**2} MiB of memory together" in PAGE
    assert MAX_RESULT_BYTES == 256 * 1024
    assert "256 KiB" in PAGE
    assert (MAX_ERROR_BYTES, MAX_MODEL_BYTES) == (16 * 1024, 1024)
    assert "cut off at 16 KiB" in PAGE
    assert "`model` at 1 KiB" in PAGE
    assert f"for {Retention().deliveries.days} days" in PAGE
    assert f"`{StateWebhookSettings().signature_header}`" in PAGE
