"""Resources: documents that a client reads by their address.

Each is the answer of a tool that only reads, or a page of the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from ductile.admin.docs_pages import LARGE_PAGE, DocsPage, read_page
from ductile.errors import NotFoundError
from ductile.struct import Value, field

SCHEME = "ductile://"
DOCS = f"{SCHEME}docs/"
#: One section of a page, named as in links between pages.
DOCS_SECTION = f"{DOCS}{{+page}}#{{section}}"
_PARAMETER = re.compile(r"\{(\w+)\}")


class McpResource(Value):
    """The answer of a tool, or one for each of its arguments, as a document with an address."""

    #: The address, with arguments of the tool in braces: `ductile://job/{job_id}`.
    uri: str
    title: str
    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_template(self) -> bool:
        return "{" in self.uri

    @property
    def name(self) -> str:
        return _PARAMETER.sub(r"\1", self.uri.removeprefix(SCHEME)).replace("/", "_")


def _resource(path: str, title: str, tool: str) -> McpResource:
    return McpResource(uri=f"{SCHEME}{path}", title=title, tool=tool)


RESOURCES = (
    _resource("last-night", "What ran, failed, was skipped and waits since yesterday evening", "last_night"),
    _resource("status", "The daemon, the queue and every plugin", "status"),
    _resource("jobs", "The latest jobs", "job_list"),
    _resource("plugins", "Every plugin", "plugin_list"),
    _resource("pipelines", "Every pipeline, with its latest run", "pipeline_list"),
    _resource("schedules", "Every schedule, and when it is next due", "schedule_list"),
    _resource("config", "The configuration in force, secrets masked", "config_show"),
    _resource("job/{job_id}", "A job: its fields, payload, result and history", "job_show"),
    _resource("job/{job_id}/explain", "Why a job failed or does not run, and what to do", "job_explain"),
    _resource("job/{job_id}/logs", "What each execution of a job printed", "job_logs"),
    _resource("run/{job_id}", "What became of every step of a run", "run_explain"),
    _resource("plugin/{plugin}", "A plugin: its manifest, and how it is set up", "plugin_show"),
    _resource("pipeline/{pipeline}", "A pipeline: what starts it, its steps and its graph", "pipeline_show"),
    _resource("schedule/{plugin}/{schedule}", "Why a schedule does or does not run", "schedule_explain"),
)


def find_resource(uri: str) -> tuple[str, dict[str, str]]:
    """Return the tool whose answer is at an address, and its arguments. Raises `NotFoundError`."""
    for resource in RESOURCES:
        # `split` returns texts and names of parameters alternately.
        pattern = "".join(
            f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part)
            for index, part in enumerate(_PARAMETER.split(resource.uri))
        )
        if (match := re.fullmatch(pattern, uri)) is not None:
            return resource.tool, {name: unquote(value) for name, value in match.groupdict().items()}
    raise NotFoundError(f"there is no resource {uri[:200]}", hint="List the resources and their templates.")


def describe_page(page: DocsPage) -> str:
    """Return the description of a page in the list of resources."""
    if page.size <= LARGE_PAGE:
        return page.summary
    return f"{page.summary}. Has {page.size // 1000} kB: add #SECTION to read one section"


def read_docs(uri: str) -> str:
    """Return the page, or the section of a page, at an address below `DOCS`. Raises `NotFoundError`."""
    page, _, section = uri.removeprefix(DOCS).partition("#")
    return read_page(unquote(page), unquote(section) or None)
