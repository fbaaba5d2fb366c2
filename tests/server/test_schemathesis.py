"""Whatever is sent, the server answers in its own words, and nothing it says is a failure of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from edgeinfer.app.server.listening import ServerOptions
from tests.server.conftest import Running, served

NO_SOURCE = str.maketrans("", "", "/\\:")


@pytest.fixture(scope="module")
def fuzzed(tiny_model: Path) -> Iterator[Running]:
    """A server of answers that end soon."""
    with served(
        tiny_model, ServerOptions(port=0, queue=400), defaults={"temperature": 0.7, "max_tokens": 8}
    ) as running:
        yield running


@pytest.fixture
def api(fuzzed: Running) -> schemathesis.schemas.BaseSchema:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(case: schemathesis.Case) -> None:
    if isinstance(case.body, dict) and "messages" in case.body | {"prompt": 1}:
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], 8)
    if case.path == "/models/sse":
        return  # its events do not end; tests/server/test_several_models.py reads them
    if case.path in ("/api/pull", "/models") and isinstance(case.body, dict):  # none of the hub's: no network in tests
        case.body |= {key: name.translate(NO_SOURCE) for key, name in case.body.items() if isinstance(name, str)}
    if isinstance(case.body, dict) and case.path in ("/api/chat", "/api/generate"):
        options = case.body.get("options")
        case.body["options"] = {**options, "num_predict": 8} if isinstance(options, dict) else {"num_predict": 8}
    response = case.call(timeout=60)
    case.validate_response(response, checks=[status_code_conformance, content_type_conformance])
    assert response.status_code < 500, response.text
