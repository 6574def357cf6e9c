"""All problems of a configuration are reported together, each with file, line, key, expected and found."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, loaded, problems_of
from ductile.config.schema.fields import Weekday
from ductile.core.durations import CalendarStep
from ductile.core.schedules.rule import DailyWindow

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.errors import Problem


def test_all_problems_are_reported_with_their_locations(tmp_path: Path) -> None:
    """Unknown keys are included, with a did-you-mean hint."""
    config = a_config(
        tmp_path,
        "include: [a.yaml]\nservcie: {}\n"
        "service:\n  tick_interval: 5\n  log_level: infos\n  max_workers: many\n",
        a_yaml="plugins:\n  echo:\n    enabeld: true\n    retry: [1]\n    schedules:\n      every: 5m\n",
    )
    included_file = str(tmp_path / "a.yaml")
    problems = problems_of(config)
    assert [(problem.file, problem.line, problem.key) for problem in problems] == [
        (str(config), 2, "servcie"),
        (str(config), 4, "service.tick_interval"),
        (str(config), 5, "service.log_level"),
        (str(config), 6, "service.max_workers"),
        (included_file, 3, "plugins.echo.enabeld"),
        (included_file, 4, "plugins.echo.retry"),
        (included_file, 5, "plugins.echo.schedules"),
    ]
    assert [problem.hint for problem in problems if "there is no key" in problem.message] == [
        "did you mean service?",
        "did you mean enabled?",
    ]
    assert problems[2].expected == "one of debug, info, warn, error"
    assert problems[2].hint == "did you mean info?"
    assert (problems[3].expected, problems[3].found) == ("a whole number, 1 or more", '"many"')
    assert (problems[5].expected, problems[5].found) == ("a map", "a list")


def test_a_number_that_cannot_be_used_hides_no_other_problem(tmp_path: Path) -> None:
    """The number is quoted as written where a list, a map or a word is expected."""
    problems = problems_of(
        a_config(
            tmp_path, "plugin_roots: .inf\nservice:\n  log_level: .nan\n  max_workers: many\napi: 1e999\n"
        )
    )
    assert [(problem.line, problem.key, problem.expected, problem.found) for problem in problems] == [
        (1, "plugin_roots", "a list", ".inf"),
        (3, "service.log_level", "one of debug, info, warn, error", ".nan"),
        (4, "service.max_workers", "a whole number, 1 or more", '"many"'),
        (5, "api", "a map", "1e999"),
    ]


def only_problem(tmp_path: Path, yaml: str) -> Problem:
    (problem,) = problems_of(a_config(tmp_path, yaml))
    return problem


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("service: {strict_mode: yes}", "true or false"),
        ("service: {strict_mode: 1}", "true or false"),
        ("service: {max_workers: 0}", "1 or more"),
        ("service: {max_workers: true}", "whole number"),
        ("service: {max_workers: 1.0}", "whole number"),
        ("service: {name: 5}", "text"),
        ("service: {name: [a]}", "text"),
        ("service: {tick_interval: 0s}", "duration"),
        ("api: {max_body_size: 1X}", "size"),
        ("plugins: {e: {warm: sometimes}}", "true or false or auto"),
        ("plugins: {e: {env: {A: [1]}}}", "text"),
        ("plugins: {e: {schedule: {at: 2026-01-01}}}", "instant"),
        ("plugins: {e: {schedule: {at: '2026-02-30T00:00:00Z'}}}", "instant"),
        ("plugins: {e: {schedule: {at: '9999-12-31T23:59:59-23:00'}}}", "instant"),
        ("plugins: {e: {schedule: {at: '0001-01-01T00:00:00+23:00'}}}", "instant"),
        ("plugins: {e: {schedule: {at: '9999-12-31T23:59:59Z'}}}", "instant"),
        ("plugins: {e: {schedule: {every: 1h, only_between: '8-22'}}}", "hours of the day"),
        ("plugins: {e: {schedule: {every: 1h, only_between: '08:00-25:00'}}}", "hours of the day"),
        ("plugins: {e: {schedule: {every: 1h, not_on: [someday]}}}", "weekday"),
        ("plugins: {e: {schedule: {every: 1h, not_on: [7]}}}", "weekday"),
        ("plugins: {e: {timeouts: {poll: 0s}}}", "duration"),
        ("service: {name: .inf}", "finite"),
    ],
)
def test_each_type_names_what_it_expects(tmp_path: Path, yaml: str, expected: str) -> None:
    problems = problems_of(a_config(tmp_path, yaml))
    assert any(expected in (problem.expected or "") for problem in problems), problems


@pytest.mark.parametrize("listener", ["api", "webhooks"])
def test_a_bare_port_expects_host_and_port(tmp_path: Path, listener: str) -> None:
    """Quotes would not make it an address, so the hint does not suggest them."""
    problem = only_problem(tmp_path, f"{listener}: {{listen: 8080}}")
    assert (problem.key, problem.expected) == (f"{listener}.listen", "host:port, such as localhost:8080")
    assert problem.hint is None


def test_a_missing_required_key_comes_with_its_description(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, "plugins: {e: {}}\nroutes:\n  - from: e\n    to: e\n")
    assert '"event_type" is missing' in problem.message
    assert (problem.line, problem.key) == (3, "routes[0]")


def test_the_forms_of_a_schedule(tmp_path: Path) -> None:
    """A schedule accepts windows, weekdays by name or number, calendar steps, and instants with their
    offset.
    """
    config = a_config(
        tmp_path,
        """
        plugins:
          e:
            schedules:
              - {id: a, every: daily, only_between: "22:00-06:30", not_on: [sat, Sunday, 1]}
              - {id: b, at: "2026-12-24T18:00:00+01:00", preferred_window: {start: 6:00, end: "24:00"}}
              - {id: c, after: 90s, jitter: 10s}
            schedule: {id: d, cron: "@daily", timezone: America/New_York}
        """,
    )
    first, second, third = loaded(config).model.plugins["e"].schedules
    assert first.every is CalendarStep.DAILY
    assert first.only_between == DailyWindow(start=time(22, 0), end=time(6, 30))
    assert first.not_on == (Weekday.SATURDAY, Weekday.SUNDAY, Weekday.MONDAY)
    assert second.at == datetime(2026, 12, 24, 17, 0, tzinfo=UTC)
    assert second.preferred_window is not None
    assert second.preferred_window.end == time(0, 0)
    assert third.after == timedelta(seconds=90)


def test_environment_values_are_texts_as_written(tmp_path: Path) -> None:
    """`PORT: 8080` and `DEBUG: true` are texts in an environment."""
    config = a_config(tmp_path, "plugins: {e: {env: {PORT: 8080, DEBUG: true, E: , Z: 007}}}\n")
    env = loaded(config).model.plugins["e"].env.reveal()
    assert env == {"PORT": "8080", "DEBUG": "true", "E": "", "Z": "007"}


def test_null_means_not_set_except_where_any_value_is_allowed(tmp_path: Path) -> None:
    config = a_config(
        tmp_path,
        """
        service: {name: , log_level: ~}
        api:
        plugins: {e: , f: {config: {x: null}}}
        pipelines:
          - {name: p, if: {path: payload.x, op: eq, value: null}, steps: [{uses: e}]}
        """,
    )
    model = loaded(config).model
    assert (model.service.name, model.service.log_level) == ("ductile", "info")
    assert model.plugins["e"].enabled
    assert model.plugins["f"].config.reveal() == {"x": None}
    condition = model.pipelines[0].condition
    assert condition is not None
    assert condition.value is None


def test_older_words_are_accepted(tmp_path: Path) -> None:
    """`kill` is accepted for `cancel`, WARNING for `warn`."""
    config = a_config(
        tmp_path,
        "service: {log_level: WARNING}\nplugins: {e: }\n"
        "pipelines: [{name: p, on_timeout: kill, steps: [{uses: e}]}]\n",
    )
    model = loaded(config).model
    assert (model.service.log_level, model.pipelines[0].on_timeout) == ("warn", "cancel")
