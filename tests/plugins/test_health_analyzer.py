"""health_analyzer, called through the runner."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from builders.shipped import PluginResult, ask

SUNDAY = date(2026, 2, 8)


def event_of_watch(at: int) -> dict[str, Any]:
    """Return an event of the plugin `watch`, so many seconds after another."""
    return {"source": "watch", "timestamp": datetime(2026, 2, 9, tzinfo=UTC) + timedelta(seconds=at)}


def handle(
    measures: list[Any], state: dict[str, Any] | None = None, at: int = 0, **config: Any
) -> PluginResult:
    event = event_of_watch(at)
    return ask(
        "health_analyzer", "handle", payload={"measures": measures}, state=state, config=config, event=event
    )


def steps(day: date, value: float) -> dict[str, Any]:
    return {"metric": "steps", "day": day.isoformat(), "value": value}


def state_of_four_weeks() -> dict[str, Any]:
    """Return the state after 28 days of steps that rise by 10 a day, with two gaps and one outlier."""
    known_days = [n for n in range(28) if n not in {5, 23}]
    measures = [steps(SUNDAY - timedelta(days=27 - n), 8000 + 10 * n) for n in known_days]
    measures[-1]["value"] = 30_000
    return handle(measures).state


def test_measures_are_kept_once_and_corrected_by_newer_events() -> None:
    """A redelivery changes nothing, a correction replaces, and an older event that comes late is ignored."""
    first = handle([steps(SUNDAY, 100)], at=1)
    repeated = handle([steps(SUNDAY, 100)], state=first.state, at=1)
    corrected = handle([steps(SUNDAY, 250)], state=repeated.state, at=2)
    late = handle([steps(SUNDAY, 100)], state=corrected.state, at=1)
    assert first.answer["result"] == "1 of 1 measures changed a value"
    assert repeated.state == first.state
    assert corrected.state["days"]["2026-02-08"]["steps"]["watch:"][0] == 250
    assert late.state == corrected.state


def test_measures_that_cannot_be_used_are_named_and_the_others_kept() -> None:
    unusable = [
        {"metric": "mood", "day": "2026-02-08", "value": 1},
        {"metric": "weight", "day": "2026-02-08", "value": 3000},
        {"metric": "weight", "day": "2026-02-08", "value": "much"},
        {"metric": "weight", "day": "2026-02-08", "value": 80, "unit": "stone"},
        {"metric": "weight", "value": 80},
        {"metric": "steps", "day": "2999-01-01", "value": 1},
        "weight",
    ]
    response = handle([steps(SUNDAY, 100), *unusable])
    assert response.answer["result"] == "1 of 8 measures changed a value, 7 ignored"
    message = " ".join(line["message"] for line in response.answer["logs"])
    assert all(
        fragment in message for fragment in ("'mood'", "3000 kg", "'much'", "'stone'", "`day` or `at`")
    )
    assert handle(unusable).failed_for_good("none of 7 measures")
    assert ask("health_analyzer", "handle", payload={"x": 1}).failed_for_good("`measures`")


@pytest.mark.parametrize(
    ("event_type", "payload", "expected"),
    [
        (
            "withings.measure",
            {"id": "4711", "at": "2026-02-08T06:30:00Z", "measures": {"weight_kg": 81.2, "pulse_bpm": 60.0}},
            {"weight": {"watch:4711": 81.2}},
        ),
        (
            "withings.sleep",
            {
                "id": "9",
                "date": "2026-02-08",
                "end": "2026-02-08T05:00:00Z",
                "sleep": {"total_sleep_time": 27000},
            },
            {"sleep": {"watch:9": 450.0}},
        ),
        (
            "withings.activity",
            {"date": "2026-02-08", "activity": {"steps": 5000, "moderate": 600, "intense": 60}},
            {"steps": {"watch:": 5000.0}, "active_minutes": {"watch:": 11.0}},
        ),
        (
            "google_calendar.changed",
            {
                "id": "m",
                "start": "2026-02-08T23:30:00-05:00",
                "end": "2026-02-09T00:15:00-05:00",
                "attendees": ["a@b"],
            },
            {"meetings": {"watch:m": 45.0}},
        ),
        (
            "google_calendar.changed",
            {"id": "m", "start": "2026-02-08", "end": "2026-02-09", "attendees": ["a@b"]},
            {"meetings": {"watch:m": None}},
        ),
    ],
)
def test_events_of_other_plugins_are_understood(
    event_type: str, payload: dict[str, Any], expected: dict[str, Any]
) -> None:
    response = ask(
        "health_analyzer", "handle", payload=payload, event={**event_of_watch(0), "type": event_type}
    )
    day = response.state["days"]["2026-02-08"]
    assert {name: {key: entry[0] for key, entry in day[name].items()} for name in day} == expected


def test_a_meeting_that_is_cancelled_is_withdrawn() -> None:
    """Google names only the id of a cancelled meeting; a meeting of next month is accepted."""
    meeting_day = datetime.now(UTC) + timedelta(days=30)
    times = {"start": f"{meeting_day:%Y-%m-%dT10:00:00}Z", "end": f"{meeting_day:%Y-%m-%dT11:00:00}Z"}
    changed = {**event_of_watch(1), "type": "google_calendar.changed"}
    state = ask(
        "health_analyzer", "handle", payload={"id": "m", **times, "attendees": ["x"]}, event=changed
    ).state
    assert [measures["meetings"]["watch:m"][0] for measures in state["days"].values()] == [60.0]
    deleted = {**event_of_watch(2), "type": "google_calendar.deleted"}
    payload = {"id": "m", "status": "cancelled", "updated": "2026-02-09T08:00:00Z"}
    state = ask("health_analyzer", "handle", payload=payload, state=state, event=deleted).state
    assert not [
        measures for measures in state["days"].values() if measures["meetings"].get("watch:m", [0])[0]
    ]


def test_the_report_has_the_numbers_of_the_week() -> None:
    """The numbers are compared with numbers that the test computes by other means."""
    response = ask("health_analyzer", "report", state=state_of_four_weeks(), payload={"day": "2026-02-05"})
    report = response.answer["result"]["report"]
    (metric,) = report["metrics"].values()
    week = [8210.0, 8220.0, 8240.0, 8250.0, 8260.0, 30000.0]
    previous_week = [8000.0 + 10 * n for n in range(14, 21)]
    assert (report["week"], report["from"], report["to"]) == ("2026-W06", "2026-02-02", "2026-02-08")
    assert metric["mean"] == pytest.approx(sum(week) / 6, abs=1e-3)
    assert metric["previous_mean"] == pytest.approx(sum(previous_week) / 7, abs=1e-3)
    assert metric["missing_days"] == ["2026-02-04"]
    assert [(anomaly["day"], anomaly["value"]) for anomaly in metric["anomalies"]] == [
        ("2026-02-08", 30000.0)
    ]
    assert metric["trend"]["days"] == 26
    (event,) = response.events
    assert event["payload"]["report"] == report
    assert event["payload"]["text"] == response.answer["result"]["text"]
    assert "unusual on 2026-02-08: 30,000, usually 8,1" in event["payload"]["text"]
    assert event["payload"]["text"] in event["payload"]["prompt"]


def test_the_same_report_again_is_the_same_event_and_a_corrected_one_is_not() -> None:
    state = state_of_four_weeks()
    keys = [
        ask("health_analyzer", "report", state=known_state, payload={"day": "2026-02-05"}).events[0][
            "dedupe_key"
        ]
        for known_state in (state, state, handle([steps(SUNDAY, 9000)], state=state, at=9).state)
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_week_without_measures_says_so() -> None:
    response = ask("health_analyzer", "report", payload={"day": "2026-02-05"})
    assert "No measures arrived" in response.events[0]["payload"]["text"]


def test_an_anomaly_is_told_once() -> None:
    """A second poll emits no event about the same anomaly."""
    state = state_of_four_weeks()
    payload_of_day = {"day": "2026-02-08"}
    first = ask("health_analyzer", "poll", state=state, payload=payload_of_day)
    state |= first.state
    second = ask("health_analyzer", "poll", state=state, payload=payload_of_day)
    assert first.event_types == ["health.anomaly"]
    payload = first.events[0]["payload"]
    assert (payload["metric"], payload["day"], payload["value"]) == ("steps", "2026-02-08", 30000.0)
    assert payload["text"].startswith("Steps unusual on 2026-02-08: 30,000, usually 8,1")
    assert second.events == []


def test_activities_are_counted_by_type() -> None:
    run = {"metric": "activity", "day": "2026-02-03", "type": "running", "minutes": 30.5, "km": 5.25}
    measures = [{**run, "id": "1"}, {**run, "id": "2"}, {**run, "id": "3", "value": None}]
    response = ask("health_analyzer", "report", state=handle(measures).state, payload={"day": "2026-02-05"})
    assert response.answer["result"]["report"]["activities"] == {
        "count": 2,
        "by_type": {"running": {"count": 2, "minutes": 61.0, "km": 10.5}},
    }
    assert "running: 2, 61 min, 10.5 km" in response.answer["result"]["text"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"keep_days": 7}, "60 to 800"),
        ({"keep_days": "long"}, "config"),
        ({"threshold": 0}, "greater than 0"),
    ],
)
def test_a_config_that_cannot_be_used_is_exit_78(config: dict[str, Any], message: str) -> None:
    response = ask("health_analyzer", "health", config=config)
    assert response.exit_code == 78
    assert message in response.answer["error"]


def test_a_day_that_is_none_is_refused() -> None:
    assert ask("health_analyzer", "report", payload={"day": "soon"}).failed_for_good("'soon'")


def test_health_says_what_is_kept() -> None:
    assert ask("health_analyzer", "health").answer["result"] == "healthy, no measures yet"
    response = ask("health_analyzer", "health", state=state_of_four_weeks())
    assert response.answer["result"] == "healthy, 26 days, the last one is 2026-02-08"
