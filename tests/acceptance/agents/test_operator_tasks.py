"""Twenty tasks of an operator, each solved through MCP alone, and graded by the state of the gateway.

The agent here is a program: it decides by the answers of tools only, and follows the calls that they name.
The page `docs/explanation/what-an-agent-can-do.md` has the tasks with their calls and tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import operator_tasks as on
from builders.faults import Gateway, a_faulty_gateway
from builders.mcp import Agent, an_agent
from builders.operator import Operator, Task

MAX_CALLS, MAX_TOKENS = 60, 40_000
BYTES_PER_TOKEN = 4
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "what-an-agent-can-do.md"


def tasks(receiver: str) -> tuple[Task, ...]:
    return (
        Task(
            text="Invoices failed last night; the accounts service is back. Run them again.",
            inject=on.failed_night,
            solve=on.retry_the_night,
            grade=on.all_succeeded,
        ),
        Task(
            text="The meter is not read any more, although its service is back.",
            inject=on.open_breaker,
            solve=on.close_breaker,
            grade=on.breaker_is_closed,
        ),
        Task(
            text="Why was there no backup? Let it run again.",
            inject=on.paused_schedule,
            solve=on.resume_schedule,
            grade=on.schedule_runs,
        ),
        Task(
            text="The audit log was down and is back. Send it what it has missed.",
            inject=on.dead_deliveries,
            solve=on.resend_deliveries,
            grade=on.all_were_delivered,
        ),
        Task(
            text="The receiver of notify is gone; the new one is at URL/notify.",
            inject=on.receiver_has_moved,
            solve=on.moved_to(receiver),
            grade=on.new_receiver_is_told,
        ),
        Task(
            text="A file was changed behind our back. Put it back.",
            inject=on.tampered_file,
            solve=on.restore_sealed,
            grade=on.file_is_as_sealed,
        ),
        Task(
            text="The import does not come to an end. End it.",
            inject=on.stuck_run,
            solve=on.end_stuck_run,
            grade=on.ended_as_cancelled,
        ),
        Task(
            text="The report times out; it may take half a minute.",
            inject=on.times_out,
            solve=on.give_more_time,
            grade=on.succeeded,
        ),
        Task(
            text="The plugin region fails. If it lacks its region: that is eu-1.",
            inject=on.lacks_variable,
            solve=on.set_variable,
            grade=on.succeeded,
        ),
        Task(
            text="Events order.created of shop have to reach echo.",
            inject=on.nothing,
            solve=on.mend_route,
            grade=on.event_arrives,
        ),
        Task(
            text="The forge says that we refuse its webhooks.",
            inject=on.signed_in_another_way,
            solve=on.accept_the_signature,
            grade=on.signature_is_accepted,
        ),
        Task(
            text="The plugin twice runs twice each day. Once is enough.",
            inject=on.nothing,
            solve=on.remove_duplicate,
            grade=on.one_schedule_is_left,
        ),
        Task(
            text="The configuration on disk cannot be loaded. Mend it.",
            inject=on.typo_in_included_file,
            solve=on.mend_typo,
            grade=on.typo_is_gone,
        ),
        Task(
            text="Nothing gets through the queue. End what fills it.",
            inject=on.flooded_queue,
            solve=on.empty_the_queue,
            grade=on.only_the_flood_was_ended,
        ),
        Task(
            text="An export was started by mistake. End it.",
            inject=on.job_by_mistake,
            solve=on.cancel_job,
            grade=on.ended_as_cancelled,
        ),
        Task(
            text="Publish failed; the cause is gone. Go on from the step that failed.",
            inject=on.failed_step,
            solve=on.run_from_failed_step,
            grade=on.first_step_ran_once,
        ),
        Task(
            text="Wire a pipeline: on day.over fetch, then tell.",
            inject=on.nothing,
            solve=on.wire_pipeline,
            grade=on.pipeline_has_run,
        ),
        Task(
            text="Since the last change backups run in the afternoon. Take it back.",
            inject=on.bad_change,
            solve=on.roll_back,
            grade=on.backup_is_at_night,
        ),
        Task(
            text="Prices are wrong since a plugin was changed. Stop its schedule.",
            inject=on.changed_answers,
            solve=on.stop_changed_plugin,
            grade=on.only_its_schedule_is_paused,
        ),
        Task(
            text="The token echo:rw only has to read. Narrow it.",
            inject=on.nothing,
            solve=on.narrow_token,
            grade=on.token_may_only_read,
        ),
    )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_faulty_gateway(tmp_path_factory.mktemp("faults")) as gateway:
        yield gateway


async def test_twenty_tasks(gateway: Gateway) -> None:
    """Each fault is injected, mended by the agent and checked from outside. The agent takes as many calls as
    the page says, and no more tokens.
    """
    costs = costs_on_page()
    total_calls, total_tokens = costs.pop("In all")
    all_tasks = tasks(gateway.receiver.url)
    assert [task.text for task in all_tasks] == list(costs)
    async with an_agent(gateway.api.workspace) as agent:
        for task in all_tasks:
            calls, tokens = await measure(task, gateway, agent)
            assert (task.text, calls) == (task.text, costs[task.text][0])
            assert tokens <= costs[task.text][1], task.text
    assert len(all_tasks) == 20
    assert total_calls == sum(calls for calls, _ in costs.values()) <= MAX_CALLS
    assert total_tokens == sum(tokens for _, tokens in costs.values()) <= MAX_TOKENS


async def measure(task: Task, gateway: Gateway, agent: Agent) -> tuple[int, int]:
    """Return how many calls a task takes, and how many tokens their answers have."""
    injected = task.inject(gateway)
    operator = Operator(agent=agent)
    await task.solve(operator)
    task.grade(gateway, injected)
    return operator.calls, operator.size // BYTES_PER_TOKEN


def costs_on_page() -> dict[str, tuple[int, int]]:
    """Return the rows of the page: the task, its calls, and how many tokens it takes at most."""
    rows = re.findall(r"^\| (.+?) \| (\d+) \| ([\d,]+) \|", PAGE.read_text(), re.MULTILINE)
    return {text: (int(calls), int(tokens.replace(",", ""))) for text, calls, tokens in rows}
