"""Resource limits are valid for the kernel, whatever number a configuration contains."""

from __future__ import annotations

import resource

import pytest

from ductile.runner.port import ResourceLimits
from ductile.runner.process.spawn import limits_to_set


@pytest.mark.parametrize("number", [2**62, 2**63, 2**80])
def test_a_limit_beyond_what_the_kernel_counts_is_as_good_as_none(number: int) -> None:
    """A number too large for the kernel is lowered to its maximum."""
    for name, soft, hard in limits_to_set(ResourceLimits(memory=number, cpu_seconds=number)):
        resource.prlimit(0, name)  # the name is one that the kernel knows
        assert max(soft, hard) < 2**63
