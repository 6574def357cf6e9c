"""The example of a cluster fits together: compose file, load balancer, configuration, and its page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml

from builders.terminal import Terminal

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cluster"
PAGE = (ROOT / "docs" / "how-to" / "run-on-several-machines.md").read_text(encoding="utf-8")
NODES = ("node1", "node2", "node3")
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text(encoding="utf-8"))
CONFIG: dict[str, Any] = yaml.safe_load((EXAMPLE / "config" / "config.yaml").read_text(encoding="utf-8"))
BALANCER = (EXAMPLE / "Caddyfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NODES)
def test_the_nodes_differ_in_their_names_only(name: str) -> None:
    node = COMPOSE["services"][name]
    assert node == COMPOSE["services"]["node1"] | {"hostname": name}
    assert node["depends_on"]["db"]["condition"] == "service_healthy"
    assert COMPOSE["services"]["db"]["healthcheck"]["test"][1] == "pg_isready"


def test_the_configuration_is_valid_with_the_variables_of_the_compose_file(tmp_path: Path) -> None:
    """The nodes have every variable that the configuration names, and no setting is unknown."""
    environment = COMPOSE["services"]["node1"]["environment"]
    named = set(re.findall(r"\$\{(\w+)\}", (EXAMPLE / "config" / "config.yaml").read_text(encoding="utf-8")))
    assert named == set(environment)
    values = {"DATABASE_URL": "postgresql://ductile:secret@db/ductile", "DUCTILE_TOKEN_ADMIN": "x" * 32}
    copytree(EXAMPLE / "config", tmp_path / "config")
    os.chmod(tmp_path / "config", 0o700)  # noqa: PTH101 - a checkout may leave it open to a group
    terminal = Terminal(directory=tmp_path, variables=values)
    assert terminal.ductile("config", "lock", "--config", "config").status == 0
    result = terminal.ductile("config", "check", "--config", "config")
    assert result.status == 0, result


def test_ports_and_directories_are_the_same_everywhere() -> None:
    """The load balancer reaches the listeners of all nodes, and each node has a directory of its own."""
    node = COMPOSE["services"]["node1"]
    for listener in ("api", "webhooks"):
        port = CONFIG[listener]["listen"].rpartition(":")[2]
        assert " ".join(f"{name}:{port}" for name in NODES) in BALANCER
        assert f"127.0.0.1:{port}:{port}" in COMPOSE["services"]["balancer"]["ports"]
    (tmpfs,) = node["tmpfs"]
    assert tmpfs.partition(":")[0] == CONFIG["state"]["directory"]
    assert node["stop_grace_period"] == "45s"


def test_braces_of_the_load_balancer_are_closed() -> None:
    for text in (BALANCER, *re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)):
        assert text.count("{") == text.count("}")


def test_the_page_and_the_example_ask_for_the_same_health() -> None:
    """`/readyz` decides about the API, on the page as in the example."""
    for text in (BALANCER, PAGE):
        assert "health_uri /readyz" in text
        assert "health_uri /healthz" in text
