"""`system status`: plugins in trouble come first, disabled ones last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import a_log_row
from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.settlement import LogStatus
from ductile.operations.jobs.documents import Execution, listed_execution
from ductile.operations.plugins.health import FailedInit
from ductile.operations.response import from_record
from ductile.operations.system.breakers import BreakerStatus
from ductile.operations.system.status import PluginStatus, problems_first
from ductile.struct import replace


def last_run(status: LogStatus) -> Execution:
    return listed_execution(a_log_row(status=status))


HEALTHY = PluginStatus(
    name="well",
    uses="well",
    enabled=True,
    draining=False,
    refused=None,
    state={},
    last_run=last_run(LogStatus.SUCCEEDED),
    next_run=None,
    paused=False,
    health=None,
    health_error=None,
    breakers={"poll": from_record(BreakerStatus, Breaker())},
    unhealthy=None,
)
KINDS = {
    "refused": replace(HEALTHY, refused="its entrypoint is not executable"),
    "unhealthy": replace(HEALTHY, unhealthy=FailedInit(job_id=None, error="init failed", at="")),
    "open": replace(HEALTHY, breakers={"poll": from_record(BreakerStatus, Breaker(state=BreakerState.OPEN))}),
    "failed": replace(HEALTHY, last_run=last_run(LogStatus.TIMED_OUT)),
    "ill": replace(HEALTHY, health=LogStatus.FAILED),
    "well": HEALTHY,
    "new": replace(HEALTHY, last_run=None, breakers={}),
    "disabled": replace(HEALTHY, enabled=False, refused="it is gone", last_run=last_run(LogStatus.FAILED)),
}
ORDER = [{"refused", "unhealthy", "open"}, {"failed", "ill"}, {"well", "new"}, {"disabled"}]


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=10))
def test_plugins_in_trouble_come_first(kinds: list[str]) -> None:
    plugins = [replace(KINDS[kind], name=f"{kind}-{number}") for number, kind in enumerate(kinds)]
    names = [plugin.name for plugin in problems_first(plugins)]
    expected = [f"{kind}-{number}" for group in ORDER for number, kind in enumerate(kinds) if kind in group]
    assert names == expected
