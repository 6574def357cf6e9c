"""Settings for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

from builders.scratch import scratch_root

# The duration of an example depends on the machine: a stall of a second is not a failure.
settings.register_profile("ductile", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ductile")

# Background jobs of a shell inherit an ignored SIGINT: Ctrl-C would not reach the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch_root()))
