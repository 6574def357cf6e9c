"""docs/reference/http.md has every endpoint, field and header, and docs/reference/metrics.md every metric."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

from builders.described import assert_matches
from builders.metrics import descriptions_of
from ductile.api.endpoints import ENDPOINTS
from ductile.api.openapi_schemas import schema_ref, schemas
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.http.server import RefusalReason
from ductile.operations.request import FieldSource, request_fields
from ductile.operations.submission import SubmissionRequest
from ductile.telemetry.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
HTTP = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
METRICS_PAGE = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_endpoints_is_what_the_program_has_now() -> None:
    """Every endpoint has a row with its scope; after a change, `make docs` writes the table anew."""
    assert generator().regenerate("reference/http.md", HTTP) == HTTP
    for endpoint in ENDPOINTS:
        assert f"| `{endpoint.http.method} {endpoint.http.path}` |" in HTTP


def test_every_parameter_field_header_and_scope_is_named() -> None:
    """Every parameter of a caller is documented."""
    for endpoint in ENDPOINTS:
        for name in endpoint.fields[FieldSource.QUERY]:
            assert re.search(rf"`(\?)?{name}(=[^`]*)?`", HTTP), name
        for header in endpoint.fields[FieldSource.HEADER]:
            assert f"| `{header}` |" in HTTP.lower()
    for field in request_fields(SubmissionRequest).values():
        assert field.header or field.source is FieldSource.LOCAL or f"| `{field.name}` |" in HTTP
    for resource in AccessResource:
        for level in AccessLevel:
            assert f"`{auth_scope(resource, level)}`" in HTTP


def test_the_examples_of_responses_are_valid() -> None:
    """The page and the OpenAPI document agree, field by field."""
    examples = re.findall(r"<!-- shape: (\w+) -->\n```json\n(.*?)\n```", HTTP, re.DOTALL)
    assert [shape for shape, _ in examples] == ["Finished", "StillRunning"]
    for shape, example in examples:
        assert_matches({"schemas": dict(schemas())}, schema_ref(shape), json.loads(example))


def test_the_fields_of_both_responses_are_explained() -> None:
    """The section of the examples explains their fields."""
    section = HTTP.partition("## Waiting for a run")[2].partition("## Jobs")[0]
    for shape in ("Finished", "StillRunning"):
        for field in schemas()[shape]["properties"]:  # type: ignore[union-attr]  # a record has them
            assert f"`{field}`" in section or f'"{field}"' in section, field


def test_every_metric_reads_as_in_the_code() -> None:
    """The reference has the table of the code."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \| (.+) \|$", METRICS_PAGE, re.MULTILINE)
    assert rows == [
        (name, kind, ", ".join(labels) or "none", text)
        for name, kind, labels, text in descriptions_of(Metrics(lambda: 0.0))
    ]


def test_every_reason_of_a_listener_is_described() -> None:
    """Each label value has a row."""
    section = METRICS_PAGE.partition("| reason | the client |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [str(reason) for reason in RefusalReason]
