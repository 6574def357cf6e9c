"""Everything at once on three nodes with one PostgreSQL server. Nothing is lost, doubled or stuck.

Clients submit to all nodes while nodes are killed, stopped and cut off, and the server is restarted. Then the
store is compared with the responses to clients, the records of plugins and the received events, and its rows
are checked. `DUCTILE_TEST_SEED` chooses other faults.
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
from builders.storm_nodes import StormCluster, a_storm_cluster

CLIENTS = 4
FOLLOWERS = 2
#: Seconds until all accepted jobs have ended and every event has arrived.
CALM_SECONDS = 600.0


def wait_until_settled(
    cluster: StormCluster, clients: list[StormClient], followers: list[StormFollower]
) -> None:
    """Wait until all accepted jobs have ended, and receivers and followers have every event."""
    for node in cluster.nodes:
        node.wait_until_ready()
    rows = Rows(cluster.server.url)
    deadline = time.monotonic() + CALM_SECONDS
    for client in clients:
        if isinstance(client, LongStormClient):
            client.cancel_pending()
    for client in clients:
        for job_id in client.accepted:
            wait_for_end(cluster, job_id, deadline)
    for (job_id,) in rows.all("SELECT id FROM job_queue WHERE submitted_by <> 'scheduler'"):
        wait_for_end(cluster, job_id, deadline)
    events = expected_events(rows)
    cluster.receiver.wait_for(lambda received: events <= {event_of(request) for request in received})
    ((newest,),) = rows.all("SELECT max(seq) FROM ledger")
    for follower in followers:
        follower.wait_for(newest)


def wait_for_end(cluster: StormCluster, job_id: str, deadline: float) -> None:
    attempt = 0
    while True:
        attempt += 1
        port = cluster.nodes[attempt % len(cluster.nodes)].port
        assert port is not None
        response = ask(port, "GET", f"/job/{job_id}/wait?timeout=20s", seconds=PATIENCE)
        if response is not None and response[0] == 200 and response[1]["status"] in ENDED:
            return
        assert time.monotonic() < deadline, (job_id, response)


def run_storm(directory: Path, seed: int, faults: int) -> None:
    with a_storm_cluster(directory) as cluster:
        rng = Random(seed)
        names = [f"s{seed}-client{number}" for number in range(CLIENTS)]
        clients = [StormClient(name, cluster, Random(rng.random())) for name in names]
        clients.append(LongStormClient(f"s{seed}-long", cluster, Random(rng.random())))
        followers = [StormFollower(cluster, Random(rng.random())) for _ in range(FOLLOWERS)]
        storm = Storm(cluster, rng)
        try:
            run_faults(storm, faults, clients, followers)
        finally:
            sys.stdout.write(f"seed {seed}\n" + "\n".join(storm.log) + "\n")
            cluster.keep_logs()
        failures = check(cluster, clients, followers, storm)
        submissions = sum(len(client.submissions) for client in clients)
        sys.stdout.write(
            f"{submissions} submissions, {len(cluster.executions())} lines of plugins, jobs of killed nodes "
            f"started again after {takeovers(cluster, storm.kills)} s\n"
        )
        assert failures == []


def run_faults(storm: Storm, faults: int, clients: list[StormClient], followers: list[StormFollower]) -> None:
    stop, stop_followers = threading.Event(), threading.Event()
    client_threads = [threading.Thread(target=client.work, args=(stop,)) for client in clients]
    follower_threads = [
        threading.Thread(target=follower.work, args=(stop_followers,)) for follower in followers
    ]
    for thread in (*client_threads, *follower_threads):
        thread.start()
    try:
        storm.run(faults)
        stop.set()
        for thread in client_threads:
            thread.join()
        wait_until_settled(storm.cluster, clients, followers)
    finally:
        stop.set()
        stop_followers.set()
        for thread in (*client_threads, *follower_threads):
            thread.join()


def check(
    cluster: StormCluster, clients: list[StormClient], followers: list[StormFollower], storm: Storm
) -> list[str]:
    rows = Rows(cluster.server.url)
    faults = [f"a daemon has ended by itself: {daemon}" for daemon in storm.ended]
    faults += [f"a client has met {fault!r}" for client in clients for fault in client.faults]
    selfcheck = cluster.nodes[0].workspace.ductile("system", "selfcheck", "--json")
    if selfcheck.status != 0:
        faults.append(f"selfcheck: {selfcheck}")
    faults += faults_of_schedules(cluster, rows)
    for node in cluster.nodes:
        node.end(signal.SIGTERM)
        if (status := node.wait_until_ended()) != 0:
            faults.append(f"{node.name} has ended with {status}: {node.daemon.lines[-5:]}")
    faults += faults_of_clients(rows, clients)
    faults += faults_of_executions(cluster, rows)
    faults += faults_of_runs(rows, set().union(*(client.retried for client in clients)))
    faults += faults_of_deliveries(rows, cluster.receiver.requests)
    faults += faults_of_followers(rows, followers)
    wait_until_unused(rows)
    move = cluster.nodes[0].workspace.ductile("system", "move-store", "--to", "sqlite")
    assert move.status == 0, move
    faults += violations(cluster.nodes[0].workspace.config.parent / "data" / "state.db")
    return faults


def wait_until_unused(rows: Rows) -> None:
    """Wait until the server has seen the end of every connection."""
    timer, deadline = threading.Event(), time.monotonic() + PATIENCE
    while rows.all(OUR_BACKENDS):
        assert time.monotonic() < deadline, rows.all("SELECT * FROM pg_stat_activity")
        timer.wait(0.05)


@pytest.mark.timeout(1800)
def test_a_short_storm_of_three_nodes(tmp_path: Path) -> None:
    """Thirty faults."""
    run_storm(tmp_path, seed=int(os.environ.get("DUCTILE_TEST_SEED", "0")), faults=30)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_long_storm_of_three_nodes(tmp_path: Path, seed: int) -> None:
    """The nightly form: five hundred faults in all."""
    run_storm(tmp_path, seed=seed, faults=100)
