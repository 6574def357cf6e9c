"""The tasks of an operator: functions that inject a fault, repair it with tools, and check the repair.

The functions with an `Operator` decide from the answers of tools only; the others work from outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

from builders.daemons import answering
from builders.faults import Gateway
from builders.http import token_for
from builders.operator import Operator

# ------------------------------------------------------------------------------------------- jobs


def failed_night(gateway: Gateway) -> list[str]:
    jobs = [gateway.run("invoices", payload={"number": number})["job_id"] for number in range(5)]
    gateway.start_service_of("invoices")
    return jobs


async def retry_the_night(agent: Operator) -> None:
    night = await agent.call("last_night")
    group = next(
        group for group in night["failed"] if "does not answer" in group["error"] and group["jobs"] > 1
    )
    result = await agent.call("job_retry_many", plugin=group["plugin"], reason=group["reason"])
    assert result["changed"] == group["jobs"]


def all_succeeded(gateway: Gateway, jobs: list[str]) -> None:
    for job in jobs:
        assert gateway.api.get(f"/job/{job}/wait?timeout=60s")["status"] == "succeeded"


def succeeded(gateway: Gateway, job: str) -> None:
    all_succeeded(gateway, [job])


def stuck_run(gateway: Gateway) -> str:
    run = gateway.start("import")
    gateway.api.daemon.wait_for("job.started", lambda line: line["plugin"] == "hangs")
    return run


async def end_stuck_run(agent: Operator) -> None:
    explained = await agent.call("run_explain", job_id="last:import")
    hanging = [step for step in explained["steps"] if step["jobs"] and step["jobs"][0]["status"] == "running"]
    assert hanging
    await agent.call("job_cancel", job_id=explained["run"]["job_id"])


def ended_as_cancelled(gateway: Gateway, job: str) -> None:
    ended = gateway.api.get(f"/job/{job}/wait?timeout=60s")
    assert ended["status"] in ("failed", "dead")
    assert not gateway.jobs(status="running", plugin=ended["plugin"])


def flooded_queue(gateway: Gateway) -> None:
    for number in range(30):
        gateway.submit("flood", payload={"number": number})
    gateway.submit("echo")


async def empty_the_queue(agent: Operator) -> None:
    queue = await agent.call("queue")
    fullest = max(queue["plugins"], key=lambda plugin: plugin["ready"] + plugin["waiting"])
    await agent.call("job_cancel_many", plugin=fullest["plugin"])


def only_the_flood_was_ended(gateway: Gateway, _: None) -> None:
    ended = [
        gateway.api.get(f"/job/{job['job_id']}/wait?timeout=60s") for job in gateway.jobs(plugin="flood")
    ]
    assert len(ended) == 30
    assert {job["reason"] for job in ended} == {"cancelled"}


def job_by_mistake(gateway: Gateway) -> str:
    job = gateway.submit("export")
    gateway.api.daemon.wait_until_started(job)
    return job


async def cancel_job(agent: Operator) -> None:
    (job,) = (await agent.call("job_list", plugin="export", status="running"))["jobs"]
    await agent.call("job_cancel", job_id=job["job_id"])


def failed_step(gateway: Gateway) -> str:
    run = gateway.start("publish")
    gateway.api.ended(run)
    gateway.start_service_of("second")
    return run


async def run_from_failed_step(agent: Operator) -> None:
    explained = await agent.call("run_explain", job_id="last:publish")
    failed = next(
        step for step in explained["steps"] if any(job.get("error") for job in step.get("jobs", ()))
    )
    result = await agent.call("run_retry", job_id=explained["run"]["job_id"], step=failed["step"])
    assert (result["ended"], result["status"]) == (True, "succeeded")


def first_step_ran_once(gateway: Gateway, run: str) -> None:
    runs = gateway.jobs(pipeline="publish")
    assert [entry["status"] for entry in runs] == ["succeeded", "failed"]
    assert runs[1]["job_id"] == run
    steps = gateway.api.get(f"/run/{runs[0]['job_id']}/explain")["steps"]
    assert [entry["step"] for entry in steps if entry["jobs"]] == ["second", "third"]


# ------------------------------------------------------------------------------------------- schedules


def open_breaker(gateway: Gateway) -> None:
    gateway.api.daemon.wait_for("breaker.changed", lambda line: line["plugin"] == "meter")
    gateway.start_service_of("meter")


async def close_breaker(agent: Operator) -> None:
    findings = (await agent.call("doctor"))["findings"]
    breaker = next(finding for finding in findings if finding["check"] == "breakers")
    await agent.follow(breaker["fix"], "breaker_reset")
    result = await agent.call("schedule_run", plugin="meter")
    assert result["status"] == "succeeded"


def breaker_is_closed(gateway: Gateway, _: None) -> None:
    breaker = gateway.api.get("/system/breaker/meter")["breakers"]["poll"]
    assert breaker["state"] == "closed"


def paused_schedule(gateway: Gateway) -> None:
    gateway.api.post("/schedule/backup/nightly/pause", {}, status=200)


async def resume_schedule(agent: Operator) -> None:
    explained = await agent.call("schedule_explain", plugin="backup")
    await agent.follow(explained["advice"], "schedule_resume")


def schedule_runs(gateway: Gateway, _: None) -> None:
    schedules = gateway.api.get("/schedules")["schedules"]
    (backup,) = [schedule for schedule in schedules if schedule["plugin"] == "backup"]
    assert backup["paused_at"] is None


async def remove_duplicate(agent: Operator) -> None:
    schedules = (await agent.call("config_show", key="plugins.twice.schedules"))["value"]
    first, second = schedules
    assert first["cron"] == second["cron"]
    await agent.change(unset=["plugins.twice.schedules[1]"])


def one_schedule_is_left(gateway: Gateway, _: None) -> None:
    schedules = gateway.api.get("/schedules")["schedules"]
    assert [schedule["id"] for schedule in schedules if schedule["plugin"] == "twice"] == ["daily"]


# ------------------------------------------------------------------------------------------- webhooks


def receiver_has_moved(gateway: Gateway) -> None:
    gateway.run("notify")
    gateway.api.daemon.wait_for("delivery.dropped", lambda line: "127.0.0.1:9" in json.dumps(line))
    gateway.accepts[0] = True


def moved_to(url: str) -> Callable[[Operator], Awaitable[None]]:
    async def solve(agent: Operator) -> None:
        dropped = (await agent.call("delivery_list", status="dropped", limit=1))["deliveries"]
        assert "cannot be reached" in dropped[0]["last_error"]
        await agent.change(set={"plugins.notify.state_webhook_url": f"{url}/notify"})
        await agent.call("run__notify__handle")

    return solve


def new_receiver_is_told(gateway: Gateway, _: None) -> None:
    job = gateway.jobs(plugin="notify", status="succeeded")[0]
    gateway.api.daemon.wait_for("delivery.delivered", lambda line: line.get("job_id") == job["job_id"])
    assert gateway.delivered("/notify")


def dead_deliveries(gateway: Gateway) -> list[str]:
    jobs = [gateway.run("audit", payload={"number": number})["job_id"] for number in range(4)]
    for job in jobs:
        gateway.api.daemon.wait_for("delivery.dropped", lambda line, job=job: line.get("job_id") == job)  # type: ignore[misc]
    gateway.accepts[0] = True
    return jobs


async def resend_deliveries(agent: Operator) -> None:
    planned = await agent.call("delivery_resend_many", status="dropped", plugin="audit", dry_run=True)
    result = await agent.call("delivery_resend_many", status="dropped", plugin="audit")
    assert result["changed"] == planned["matched"]


def all_were_delivered(gateway: Gateway, jobs: list[str]) -> None:
    for job in jobs:
        gateway.api.daemon.wait_for("delivery.delivered", lambda line, job=job: line.get("job_id") == job)  # type: ignore[misc]


def signed_in_another_way(gateway: Gateway) -> None:
    assert gateway.send_signed_webhook(b'{"n": 1}', "X-Forge-Signature") == 403


async def accept_the_signature(agent: Operator) -> None:
    endpoints = (await agent.call("webhook_list"))["endpoints"]
    index, endpoint = next((at, endpoint) for at, endpoint in enumerate(endpoints) if "refused" in endpoint)
    sent = re.search(r"it sent ([a-z0-9-]+)", endpoint["refused"]["why"])
    assert sent is not None
    key = f"webhooks.endpoints[{index}]"
    await agent.change(set={f"{key}.signature_header": sent[1]}, unset=[f"{key}.preset"])


def signature_is_accepted(gateway: Gateway, _: None) -> None:
    assert gateway.send_signed_webhook(b'{"n": 2}', "X-Forge-Signature") == 202


# ------------------------------------------------------------------------------------------- plugins


def times_out(gateway: Gateway) -> str:
    job_id: str = gateway.run("report")["job_id"]
    return job_id


async def give_more_time(agent: Operator) -> None:
    explained = await agent.call("job_explain", job_id="last:report")
    (key,) = re.findall(r'config_plan set=\{"([^"]+)": "DURATION"\}', " ".join(explained["advice"]))
    await agent.change(set={key: "30s"})
    assert (await agent.call("job_retry", job_id=explained["job_id"]))["status"] == "succeeded"


def lacks_variable(gateway: Gateway) -> str:
    job_id: str = gateway.run("region")["job_id"]
    return job_id


async def set_variable(agent: Operator) -> None:
    explained = await agent.call("job_explain", job_id="last:region")
    (name,) = re.findall(r"(\w+): is not set", explained["verdict"])
    await agent.change(set={f"plugins.region.env.{name}": "eu-1"})
    assert (await agent.call("job_retry", job_id=explained["job_id"]))["result"] == "eu-1"


async def mend_route(agent: Operator) -> None:
    explained = await agent.call("event_explain", type="order.created", **{"from": "shop"})
    assert explained["would_start"] == []
    near = next(target for target in explained["targets"] if target["kind"] == "route")
    await agent.change(set={f"{near['key']}.event_type": "order.created"})


def event_arrives(gateway: Gateway, _: None) -> None:
    job_id = gateway.run("shop")["job_id"]
    children = gateway.api.get(f"/job/{job_id}/tree")["tree"]["children"]
    assert [child["plugin"] for child in children] == ["echo"]


def changed_answers(gateway: Gateway) -> None:
    gateway.run("price", "poll")
    script = gateway.directory / "plugins" / "price" / "run.sh"
    script.write_text(answering({"status": "ok", "result": "0 EUR"}))


async def stop_changed_plugin(agent: Operator) -> None:
    changed = await agent.call("what_changed", since="1d")
    (plugin,) = changed["unsealed_plugins"]
    await agent.call("schedule_pause", plugin=plugin)


def only_its_schedule_is_paused(gateway: Gateway, _: None) -> None:
    paused = [
        schedule["plugin"] for schedule in gateway.api.get("/schedules")["schedules"] if schedule["paused_at"]
    ]
    assert paused == ["price"]


# ------------------------------------------------------------------------------------------- configuration


def tampered_file(gateway: Gateway) -> str:
    sealed = gateway.api.workspace.config.read_text()
    gateway.api.workspace.config.write_text(sealed.replace("parallelism: 1", "parallelism: 64"))
    return sealed


async def restore_sealed(agent: Operator) -> None:
    findings = (await agent.call("doctor"))["findings"]
    assert any(finding["check"] == "seal" for finding in findings)
    await agent.change(rollback_to="sealed")


def file_is_as_sealed(gateway: Gateway, sealed: str) -> None:
    assert gateway.api.workspace.config.read_text() == sealed
    assert gateway.api.workspace.ductile("config", "check").status == 0


def typo_in_included_file(gateway: Gateway) -> None:
    more = gateway.directory / "more.yaml"
    more.write_text(more.read_text().replace("timeout: 20s", "tiemout: 40s"))


async def mend_typo(agent: Operator) -> None:
    (problem,) = (await agent.call("config_plan"))["error"]["details"]["problems"]
    (meant,) = re.findall(r"timeout", problem["hint"])
    plugin = problem["key"].rpartition(".")[0]
    await agent.change(set={f"{plugin}.{meant}": "40s"}, unset=[problem["key"]])


def typo_is_gone(gateway: Gateway, _: None) -> None:
    assert "tiemout" not in (gateway.directory / "more.yaml").read_text()
    assert gateway.api.get("/config/value?key=plugins.extra.timeout")["value"] == "40s"


async def wire_pipeline(agent: Operator) -> None:
    steps = [{"id": "fetch", "uses": "echo"}, {"id": "tell", "uses": "echo"}]
    await agent.change(set={"pipelines[+]": {"name": "digest", "on": "day.over", "steps": steps}})
    sent = await agent.call("event_send", type="day.over")
    assert len(sent["started"]) == 1


def pipeline_has_run(gateway: Gateway, _: None) -> None:
    (run,) = gateway.jobs(pipeline="digest")
    succeeded(gateway, run["job_id"])


def bad_change(gateway: Gateway) -> None:
    wrong = {"plugins.backup.schedules[0].cron": "0 15 * * *"}
    plan = gateway.api.post("/config/plan", {"set": wrong}, status=200)["plan"]
    gateway.api.post("/config/apply", {"plan": plan}, status=200)


async def roll_back(agent: Operator) -> None:
    history = (await agent.call("config_history", limit=3))["history"]
    position = next(
        index for index, entry in enumerate(history) if "plugins.backup" in entry.get("changes", "")
    )
    await agent.change(rollback_to=history[position + 1]["id"])


def backup_is_at_night(gateway: Gateway, _: None) -> None:
    assert gateway.api.get("/config/value?key=plugins.backup.schedules[0].cron")["value"] == "0 3 * * *"
    newest = gateway.api.get("/config/history")["history"][0]
    assert (newest["command"], newest["author"]) == ("rollback", "mcp")


async def narrow_token(agent: Operator) -> None:
    tokens = (await agent.call("token_list"))["tokens"]
    (excessive,) = [
        token for token in tokens if token["name"] == "echo:rw" and token["scopes"] != ["echo:ro"]
    ]
    await agent.change(token_scopes={excessive["name"]: ["echo:ro"]})


def token_may_only_read(gateway: Gateway, _: None) -> None:
    token = token_for("echo:rw")
    assert gateway.api.ask("POST", "/plugin/echo/handle", {}, token=token).status == 403
    assert gateway.api.ask("GET", "/plugin/echo", token=token).status == 200


def nothing(_: Gateway) -> None:
    """Inject nothing: the gateway has the fault from the start."""
