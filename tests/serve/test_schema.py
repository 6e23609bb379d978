"""Whatever a client makes up from the OpenAPI page: no error of ours, no answer beside the
schema.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks as openapi_checks
from serve_runs import TinyRun, config_of, in_process

load_all_checks()
# Not `positive_data_acceptance`: that bars follow one another is no matter of a schema.
CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]


@pytest.fixture(scope="module")
def app(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """The application on an event loop of its own thread, which answers calls from other loops."""
    loop = asyncio.new_event_loop()
    started, stopping = threading.Event(), asyncio.Event()
    found: list[FastAPI] = []

    async def run() -> None:
        config = config_of(tiny, tmp_path_factory.mktemp("schema"), bars=tiny.bars)
        async with in_process(config) as (client, _):
            found.append(client._transport.app)  # type: ignore[attr-defined]
            started.set()
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()

    async def forward(scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] == "lifespan":
            return
        here = asyncio.get_running_loop()

        def across(call):  # type: ignore[no-untyped-def]
            async def called(*args):  # type: ignore[no-untyped-def]
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(call(*args), here)
                )

            return called

        future = asyncio.run_coroutine_threadsafe(
            found[0](scope, across(receive), across(send)), loop
        )
        await asyncio.wrap_future(future)

    yield forward  # type: ignore[misc]
    loop.call_soon_threadsafe(stopping.set)
    thread.join()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_schema_holds(app: FastAPI, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) == 12
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (
            operation.body or operation.query or operation.path_parameters
        ):
            continue

        @settings(max_examples=20, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(operation.as_strategy(generation_mode=mode))
        def holds(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS)

        holds()
