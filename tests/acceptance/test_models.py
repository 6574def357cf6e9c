"""Language models as jobs: the ollama plugin in a real daemon, with a server that speaks its protocol."""

from __future__ import annotations

import email
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from email import policy
from pathlib import Path

from builders.daemons import PATIENCE, Workspace, a_daemon, a_workspace
from builders.feeds import rss_of
from builders.mail import PASSWORD, USER, SmtpServer, listening
from builders.models import LLAMA, an_ollama
from builders.receivers import ReceivedRequest, a_receiver
from builders.services import Reply, ServiceRequest, a_service
from builders.shipped import ROOT
from builders.terminal import DUCTILE


def a_workspace_with_models(directory: Path, url: str) -> Workspace:
    workspace = a_workspace(directory)
    workspace.config.write_text(
        f"""\
plugin_roots: [{ROOT}]
service: {{log_level: debug}}
state_webhooks: {{allow: [127.0.0.1]}}
plugins:
  ollama: {{config: {{base_url: "{url}", model: "{LLAMA}"}}}}
"""
    )
    return workspace


def has_ended(requests: list[ReceivedRequest]) -> bool:
    return any(request.body["state"] in ("done", "failed") for request in requests)


def test_state_webhooks_name_the_model_and_end_with_ollama_s_own_response(tmp_path: Path) -> None:
    """The model is that of the payload, else of the configuration; the last `result` has Ollama's shape."""
    with an_ollama() as service:
        workspace = a_workspace_with_models(tmp_path, service.url)
        with a_daemon(workspace):
            for options in ({}, {"model": "missing"}):
                with a_receiver() as receiver:
                    payload = json.dumps({"prompt": "Why?", **options})
                    words = ("run", "ollama", "handle", "--no-wait", "--payload", payload)
                    workspace.json(*words, "--state-webhook-url", receiver.url())
                    bodies = [request.body for request in receiver.wait_for(has_ended)]
                assert {body["model"] for body in bodies} == {options.get("model", LLAMA)}
                last = next(body for body in bodies if body["state"] in ("done", "failed"))
                if options:
                    assert (last["state"], last["attempt"]) == ("failed", 1), "a missing model is not retried"
                    assert "ductile run ollama pull --payload" in last["error"]
                else:
                    assert last["result"]["response"] == "Because of Why?"
                    assert (last["result"]["done"], last["result"]["eval_count"]) == (True, 3)


def test_the_advice_for_a_missing_model_can_be_typed(tmp_path: Path) -> None:
    """The command in the error downloads the model, by the configured name of the plugin."""
    with an_ollama() as service:
        workspace = a_workspace_with_models(tmp_path, service.url)
        failed = workspace.json(
            "run", "ollama", "generate", "--payload", '{"prompt": "x", "model": "new"}', status=1
        )
        advice = str(failed["result"]["error"]).partition("Download it: ductile ")[2].partition(". See")[0]
        result = workspace.ductile(*shlex.split(advice))
    assert (result.status, "success" in result.out) == (0, True), result


def test_the_progress_of_a_download_is_shown_while_it_runs(tmp_path: Path) -> None:
    """`job logs -f` prints each line at once."""
    finish = threading.Event()

    def pulling(_: ServiceRequest) -> Reply:
        def parts() -> Iterator[bytes]:
            yield b'{"status": "pulling manifest"}\n'
            finish.wait(PATIENCE)
            yield b'{"status": "success"}\n'

        return Reply(chunks=parts())

    with a_service(pulling) as service:
        workspace = a_workspace_with_models(tmp_path, service.url)
        with a_daemon(workspace) as daemon:
            job_id = workspace.json("run", "ollama", "pull", "--no-wait")["job_id"]
            daemon.wait_until_started(job_id)
            with subprocess.Popen(
                [DUCTILE, "job", "logs", "-f", job_id, "--config", "demo"],
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
                stdout=subprocess.PIPE,
                text=True,
            ) as follower:
                assert follower.stdout is not None
                assert follower.stdout.readline() == "pulling manifest\n"
                finish.set()
                rest, _ = follower.communicate(timeout=PATIENCE)
    lines = rest.splitlines()
    assert (lines[0], lines[-1]) == ("success", f"{job_id} succeeded (completed)")


def test_the_how_to_summarises_a_feed_and_mails_it(tmp_path: Path) -> None:
    """The configuration is that of the page, with the addresses of the three servers replaced."""
    page = (ROOT.parent / "docs" / "how-to" / "summarise-with-a-local-model.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    titles, office, workspace = ["old"], SmtpServer(), a_workspace(tmp_path)

    def feed(_: ServiceRequest) -> Reply:
        return Reply(body=rss_of(*titles).encode())

    with a_service(feed) as news, an_ollama() as models, listening(office.serve) as port:
        smtp = f"host: 127.0.0.1, port: {port}, security: none, user: {USER}"
        replacements = {
            "https://example.org/feed.xml": news.url,
            "http://localhost:11434": models.url,
            "llama3.2": LLAMA,
            "host: smtp.example.org, user: ductile@example.org": smtp,
        }
        for original, replacement in replacements.items():
            assert original in example
            example = example.replace(original, replacement)
        workspace.config.write_text(f"plugin_roots: [{ROOT}]\n{example}")
        with a_daemon(workspace, {"MAIL_PASSWORD": PASSWORD}) as daemon:
            workspace.json("run", "news")
            titles.insert(0, "New things")
            workspace.json("run", "news")
            daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "mail")
    ((sender, recipients, raw),) = office.received
    message = email.message_from_bytes(raw, policy=policy.default)
    assert (sender, recipients) == ("ductile@example.org", ["you@example.org"])
    assert message["Subject"] == "New things"
    assert "Because of Summarise this in three sentences." in str(message)
