"""Everything at once on three nodes with one PostgreSQL server. Nothing is lost, doubled or stuck.

Clients submit to all nodes while nodes are killed, stopped and cut off, and the server is restarted. What has
to hold afterwards is checked against what clients were told, what plugins recorded and what arrived, and then
by the rules for a store at rest. `DUCTILE_TEST_SEED` chooses other faults than the usual ones.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from builders.daemons import PATIENCE
from builders.invariants import violations
from builders.storm_checks import (
    Rows,
    event_of,
    expected_events,
    faults_of_clients,
    faults_of_deliveries,
    faults_of_executions,
    faults_of_followers,
    faults_of_runs,
    faults_of_schedules,
    takeovers,
)
from builders.storm_clients import ENDED, LongStormClient, StormClient, StormFollower, ask
from builders.storm_faults import OUR_BACKENDS, Storm
from builders.storm_nodes import StormGround, a_storm_ground

CLIENTS = 4
FOLLOWERS = 2
#: For everything that was accepted to end, and for every event to arrive.
CALM_SECONDS = 600.0


def calm_down(ground: StormGround, clients: list[StormClient], followers: list[StormFollower]) -> None:
    """Wait until everything that was accepted has ended, every event has arrived, and readers are there."""
    for node in ground.nodes:
        node.wait_until_ready()
    rows = Rows(ground.server.url)
    deadline = time.monotonic() + CALM_SECONDS
    for client in clients:
        if isinstance(client, LongStormClient):
            client.cancel_pending()
    for client in clients:
        for job_id in client.accepted:
            wait_for_end(ground, job_id, deadline)
    for (job_id,) in rows.all("SELECT id FROM job_queue WHERE submitted_by <> 'scheduler'"):
        wait_for_end(ground, job_id, deadline)
    events = expected_events(rows)
    ground.receiver.wait_for(lambda received: events <= {event_of(request) for request in received})
    ((newest,),) = rows.all("SELECT max(seq) FROM ledger")
    for follower in followers:
        follower.wait_for(newest)


def wait_for_end(ground: StormGround, job_id: str, deadline: float) -> None:
    turn = 0
    while True:
        turn += 1
        port = ground.nodes[turn % len(ground.nodes)].port
        assert port is not None
        found = ask(port, "GET", f"/job/{job_id}/wait?timeout=20s", seconds=PATIENCE)
        if found is not None and found[0] == 200 and found[1]["status"] in ENDED:
            return
        assert time.monotonic() < deadline, (job_id, found)


def storm(directory: Path, seed: int, faults: int) -> None:
    with a_storm_ground(directory) as ground:
        rng = Random(seed)
        names = [f"s{seed}-client{number}" for number in range(CLIENTS)]
        clients = [StormClient(name, ground, Random(rng.random())) for name in names]
        clients.append(LongStormClient(f"s{seed}-long", ground, Random(rng.random())))
        followers = [StormFollower(ground, Random(rng.random())) for _ in range(FOLLOWERS)]
        raging = Storm(ground, rng)
        try:
            live_through(raging, faults, clients, followers)
        finally:
            sys.stdout.write(f"seed {seed}\n" + "\n".join(raging.story) + "\n")
            ground.keep_logs()
        found = check(ground, clients, followers, raging)
        submissions = sum(len(client.submissions) for client in clients)
        sys.stdout.write(
            f"{submissions} submissions, {len(ground.executions())} lines of plugins, jobs of killed nodes "
            f"started again after {takeovers(ground, raging.kills)} s\n"
        )
        assert found == []


def live_through(
    raging: Storm, faults: int, clients: list[StormClient], followers: list[StormFollower]
) -> None:
    over, quiet = threading.Event(), threading.Event()
    working = [threading.Thread(target=client.work, args=(over,)) for client in clients]
    reading = [threading.Thread(target=follower.work, args=(quiet,)) for follower in followers]
    for thread in (*working, *reading):
        thread.start()
    try:
        raging.rage(faults)
        over.set()
        for thread in working:
            thread.join()
        calm_down(raging.ground, clients, followers)
    finally:
        over.set()
        quiet.set()
        for thread in (*working, *reading):
            thread.join()


def check(
    ground: StormGround, clients: list[StormClient], followers: list[StormFollower], raging: Storm
) -> list[str]:
    rows = Rows(ground.server.url)
    found = [f"a daemon has ended by itself: {each}" for each in raging.ended]
    found += [f"a client has met {fault!r}" for client in clients for fault in client.faults]
    sound = ground.nodes[0].workspace.ductile("system", "selfcheck", "--json")
    if sound.status != 0:
        found.append(f"selfcheck: {sound}")
    found += faults_of_schedules(ground, rows)
    for node in ground.nodes:
        node.end(signal.SIGTERM)
        if (status := node.wait_until_ended()) != 0:
            found.append(f"{node.name} has ended with {status}: {node.life.lines[-5:]}")
    found += faults_of_clients(rows, clients)
    found += faults_of_executions(ground, rows)
    found += faults_of_runs(rows, set().union(*(client.retried for client in clients)))
    found += faults_of_deliveries(rows, ground.receiver.requests)
    found += faults_of_followers(rows, followers)
    wait_until_unused(rows)
    moved = ground.nodes[0].workspace.ductile("system", "move-store", "--to", "sqlite")
    assert moved.status == 0, moved
    found += violations(ground.nodes[0].workspace.config.parent / "data" / "state.db")
    return found


def wait_until_unused(rows: Rows) -> None:
    """Until the server has seen the end of every connection, which the proxies pass on."""
    over, deadline = threading.Event(), time.monotonic() + PATIENCE
    while rows.all(OUR_BACKENDS):
        assert time.monotonic() < deadline, rows.all("SELECT * FROM pg_stat_activity")
        over.wait(0.05)


@pytest.mark.timeout(1800)
def test_a_short_storm_of_three_nodes(tmp_path: Path) -> None:
    """Thirty faults."""
    storm(tmp_path, seed=int(os.environ.get("DUCTILE_TEST_SEED", "0")), faults=30)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_long_storm_of_three_nodes(tmp_path: Path, seed: int) -> None:
    """The nightly form: five hundred faults in all."""
    storm(tmp_path, seed=seed, faults=100)
