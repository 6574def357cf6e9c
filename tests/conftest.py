"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about us: a stall of a second is no failure.
settings.register_profile("ductile", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ductile")
