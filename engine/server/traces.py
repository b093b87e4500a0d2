"""A span per request, sent to a collector of OpenTelemetry. Its packages are an extra and imported here alone."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from engine.batch import FinishReason
from engine.errors import UserError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from starlette.types import ASGIApp, Receive, Scope, Send

    from engine.server.metrics import Record

FLAG = "--otlp-traces-endpoint"
PROTOCOLS = ("grpc", "http/protobuf")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SCHEMES = ("grpc", "http", "https")
PACKAGES = "opentelemetry-sdk and opentelemetry-exporter-otlp"
HEADERS = (b"traceparent", b"tracestate")
SPAN = "llm_request"


class Traces:
    """Spans begin when a request arrives and are sent, many at once, by a thread of the library; where they go wrong
    it says so in the log and requests go on. ``close`` once."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = OTELResourceDetector().detect().attributes
        resource = Resource.create({"service.name": "engine", **named})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer("engine.server")

    def follow(self, request_id: str, model: str) -> Callable[[Record], None]:
        """What writes the span of a request that begins now, once it is told the request's record."""
        from opentelemetry import context

        parent = context.get_current()
        return lambda record: self._write(record, request_id, model, parent)

    async def close(self, patience: float) -> None:
        """Send what is left, for at most ``patience`` seconds."""
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self.provider.shutdown()
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="traces-end", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), patience)
        except TimeoutError:
            return

    def _write(self, record: Record, request_id: str, model: str, parent: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now, clock = time.time_ns(), time.monotonic()
        begin, end = (now - int((clock - at) * 1e9) for at in (record.start, record.finish))
        attributes = describe(record, request_id, model)
        span = self.tracer.start_span(SPAN, parent, SpanKind.SERVER, attributes, start_time=begin)
        if record.outcome is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)


def describe(record: Record, request_id: str, model: str) -> dict[str, Any]:
    """The attributes of a span, by the names users know; times in seconds. No text of anybody's is among them."""
    params, phases = record.params, record.phases()
    found = {
        "gen_ai.request.id": request_id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.response.finish_reasons": [str(record.outcome)],
        "gen_ai.usage.prompt_tokens": sum(record.prompts),
        "gen_ai.usage.completion_tokens": sum(record.tokens.values()),
        "gen_ai.usage.num_sequences": len(record.prompts) * params.n,
        "gen_ai.latency.e2e": record.finish - record.start,
        "gen_ai.latency.time_to_first_token": None if record.first is None else record.first - record.start,
        "gen_ai.latency.time_in_queue": phases.get("queue"),
        "gen_ai.latency.time_in_model_prefill": phases.get("prefill"),
        "gen_ai.latency.time_in_model_decode": phases.get("decode"),
        "gen_ai.latency.time_in_model_inference": phases.get("inference"),
    }
    return {name: value for name, value in found.items() if value is not None}


class TraceContext:
    """What a request's headers say of the trace it belongs to holds while it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.app, self.context, self.propagator = app, context, TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = {name.decode(): value.decode("latin-1") for name, value in scope.get("headers", ()) if name in HEADERS}
        token = self.context.attach(self.propagator.extract(found))
        try:
            await self.app(scope, receive, send)
        finally:
            self.context.detach(token)


def open_traces(endpoint: str) -> Traces:
    """Spans for the collector at ``endpoint``; the protocol and all else is what the variables of OpenTelemetry say.
    Raises ``UserError`` when the packages are missing or the address or the protocol is none."""
    address = urlsplit(endpoint)
    if address.scheme not in SCHEMES or not address.netloc:
        raise UserError(f"{FLAG} {endpoint} is no address of a collector; give one like http://127.0.0.1:4317")
    variable = next((name for name in PROTOCOL_VARIABLES if os.environ.get(name)), "")
    protocol = os.environ[variable] if variable else PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise UserError(f"{variable}={protocol} is no protocol of traces here; set it to {' or '.join(PROTOCOLS)}")
    if protocol != PROTOCOLS[0] and address.scheme == "grpc":
        raise UserError(f"{FLAG} {endpoint} does not go with {variable}={protocol}; give an http address, or unset it")
    try:
        return Traces(_exporter(endpoint, protocol, secure=address.scheme == "https"))
    except ImportError as error:
        raise UserError(
            f"{FLAG} {endpoint} was given, and {error.name or 'a package'} is not installed; traces need {PACKAGES}: "
            "pip install 'engine[otel]'"
        ) from error


def _exporter(endpoint: str, protocol: str, secure: bool) -> SpanExporter:
    if protocol == PROTOCOLS[0]:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint, insecure=not secure)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp(endpoint=endpoint)
