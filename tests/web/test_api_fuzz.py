"""Schemathesis over the whole API: whatever is sent, the answers are those that OpenAPI describes, and never a 500."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from opgauge.web.rate import RateLimit, RateLimits
from tests.databases import database

EXAMPLES = int(os.environ.get("OPGAUGE_TEST_EXAMPLES", "12"))
"""Requests to each route in each mode."""
TOO_LARGE = "413"
"""Rejects what is unsound as well, if it is long."""


@dataclass(frozen=True)
class Described:
    """The API as OpenAPI describes it, and what allows writing to it."""

    schema: Any
    headers: dict[str, str]


@pytest.fixture(scope="module")
def described(filled: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    """The service over a copy of the filled store; no limit on how often."""
    with database(tmp_path_factory.mktemp("fuzz"), filled) as url:
        app = create_app(Settings(database=url))
        often = RateLimit(per_s=1e9, burst=10**9)
        app.state.limits = RateLimits(often, often, often)
        secret = create_token(app.state.store.engine, "fuzz", Scope.SUBMIT)
        schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
        rejection = schema.config.checks.negative_data_rejection
        rejection.expected_statuses = [*rejection.expected_statuses, TOO_LARGE]
        yield Described(schema, {"Authorization": f"Bearer {secret}"})
        app.state.store.close()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
def test_no_request_breaks_the_service(described: Described, mode: GenerationMode) -> None:
    """Sound and unsound requests alike, with a token: a described answer of the described form, and never a 500."""
    operations = [found.ok() for found in described.schema.get_all_operations()]
    assert len(operations) >= 19
    for operation in operations:
        _try(operation, mode, described.headers)


def _try(operation: Any, mode: GenerationMode, headers: dict[str, str]) -> None:
    # a run that fits the schema may still be wrong: OpenAPI cannot say what shapes an op takes
    writes = operation.method != "get"
    excluded = [schemathesis.checks.positive_data_acceptance] if writes else []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def attempt(case: Any) -> None:
        case.call_and_validate(headers=dict(headers), excluded_checks=excluded)

    try:
        attempt()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, operation.label  # some routes take nothing that could be wrong
