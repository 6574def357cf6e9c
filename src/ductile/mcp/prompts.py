"""Prompts: instructions for an agent to do the usual work of an operator."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.errors import NotFoundError, RefusedError
from ductile.struct import Value


class McpPrompt(Value):
    """A text for an agent, with arguments that a user fills in."""

    name: str
    title: str
    #: The arguments with their meanings; `text` names them in braces.
    arguments: Mapping[str, str]
    text: str


PROMPTS = (
    McpPrompt(
        name="diagnose_failure",
        title="Find out why a job failed, and propose a remedy",
        arguments={"job_id": "The id of the job or run, or its first characters."},
        text="Find out why the job {job_id} did not succeed.\n"
        "1. Call job_explain; for the run of a pipeline also run_explain. Read the verdict, the evidence and "
        "the advice.\n"
        "2. If that is not enough, read job_logs, and plugin_show of its plugin.\n"
        "3. Say the cause in one sentence, with the evidence, and what remains uncertain.\n"
        "4. Propose a remedy. Call job_retry only if the cause is gone and a second run does no harm.",
    ),
    McpPrompt(
        name="author_plugin",
        title="Write a plugin, test it and activate it",
        arguments={"goal": "What the plugin has to do."},
        text="Write a Ductile plugin: {goal}\n"
        "1. Call plugin_list: perhaps a plugin does this already.\n"
        "2. On the machine of the daemon run `ductile plugin new NAME`, and edit what it wrote. The manifest "
        "names every command with its type (read or write) and a schema of its input.\n"
        "3. Run `ductile plugin test NAME` until all checks pass.\n"
        "4. Call config_plan with set: the key plugins.NAME with its settings. Show the answer, and call "
        "config_apply with the plan after it was agreed to.\n"
        "5. Run it once with the tool run, and show the result.",
    ),
    McpPrompt(
        name="wire_webhook",
        title="Let a webhook of another service start a plugin or pipeline",
        arguments={"sender": "The service that sends the webhook.", "target": "The plugin or pipeline."},
        text="Let a webhook of {sender} start {target}.\n"
        "1. Call webhook_list and plugin_show or pipeline_show of the target.\n"
        "2. Call config_plan with set: the key webhooks.endpoints[+] with the signature that {sender} uses; "
        "its secret is a reference to a variable of the environment, and is never shown.\n"
        "3. Show the answer, and call config_apply with the plan after it was agreed to.\n"
        "4. Have a test sent (`ductile webhook send`), find the job with job_list, and show what became of "
        "it.",
    ),
    McpPrompt(
        name="review_last_night",
        title="Review what happened since yesterday evening",
        arguments={},
        text="Review what happened here since yesterday evening.\n"
        "1. Call last_night.\n"
        "2. Call job_explain for the example of each group of failures, and schedule_explain for schedules "
        "that were skipped.\n"
        "3. Report: what failed and why, what waits, what changed, what needs a decision. Name job ids. "
        "Change nothing unless asked to.",
    ),
)


def render_prompt(name: str, arguments: Mapping[str, str]) -> tuple[McpPrompt, str]:
    """Return the prompt and its text. Raises `NotFoundError`, or `RefusedError` for a missing argument."""
    prompt = next((prompt for prompt in PROMPTS if prompt.name == name), None)
    if prompt is None:
        names = ", ".join(prompt.name for prompt in PROMPTS)
        raise NotFoundError(f"there is no prompt {name[:100]}", hint=f"There are {names}.")
    text = prompt.text
    for argument in prompt.arguments:
        if not arguments.get(argument):
            raise RefusedError(f"the argument {argument} is missing", hint=prompt.arguments[argument])
        text = text.replace(f"{{{argument}}}", arguments[argument])
    return prompt, text
