"""Spans of requests, as a collector on loopback gets them."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from engine.errors import UserError
from engine.server.traces import PROTOCOL_VARIABLES, open_traces
from tests.live_server import LiveServer
from tests.scripted_engine import MODEL, Script, serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KNOWN = {
    "gen_ai.request.id", "gen_ai.request.model", "gen_ai.response.model", "gen_ai.request.n",
    "gen_ai.request.temperature", "gen_ai.request.top_p", "gen_ai.request.max_tokens",
    "gen_ai.response.finish_reasons", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens",
    "gen_ai.usage.num_sequences", "gen_ai.latency.e2e", "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_inference",
}  # fmt: skip


class Collector:
    """``url``: where it listens, in the protocol asked for."""

    def __init__(self, url):
        self.url, self.got = url, queue.Queue()

    def take(self, request):
        for resource in request.resource_spans:
            service = {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.got.put((service, span))

    def span(self, seconds=30):
        return self.got.get(timeout=seconds)


@contextmanager
def collecting(protocol):
    """Listens until the end."""
    if protocol == "grpc":
        server = grpc.server(ThreadPoolExecutor(2))
        collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request, context):
                collector.take(request)
                return trace_service_pb2.ExportTraceServiceResponse()

        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
        server.start()
        try:
            yield collector
        finally:
            server.stop(None)
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()


def values(span):
    """Attributes as plain values."""
    found = {}
    for entry in span.attributes:
        kind = entry.value.WhichOneof("value")
        value = getattr(entry.value, kind)
        found[entry.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@pytest.fixture(params=["grpc", "http/protobuf"])
def traced(request, monkeypatch):
    """(server, collector) in each protocol; spans are sent at once."""
    monkeypatch.setenv(PROTOCOL_VARIABLES[0], request.param)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting(request.param) as collector:
        traces = open_traces(collector.url)
        try:
            with serving(Script(once=True), traces=traces) as server:
                yield server, collector
        finally:
            traces.provider.shutdown()


def test_a_request_is_one_span_in_the_trace_of_its_caller(traced):
    server, collector = traced
    body = {"model": MODEL, "prompt": ["ab", "cde"], "n": 2, "max_tokens": 4, "temperature": 0.5, "top_p": 0.25}
    before = time.time_ns()
    answer = server.client.post(
        "/v1/completions", json=body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"}
    )
    service, span = collector.span()
    assert service == "engine" and span.name == "llm_request" and span.kind == span.SPAN_KIND_SERVER
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT and span.trace_state == "a=b"
    assert before - 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano < time.time_ns() + 10**9
    found, usage = values(span), answer.json()["usage"]
    assert found.keys() == KNOWN
    assert found["gen_ai.request.id"] == answer.json()["id"] and found["gen_ai.request.model"] == MODEL
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 16
    assert [found[f"gen_ai.{name}"] for name in ("request.n", "request.temperature", "request.top_p",
            "request.max_tokens", "usage.num_sequences")] == [2, 0.5, 0.25, 4, 4]  # fmt: skip
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    for name in (name for name in KNOWN if ".latency." in name):
        assert 0 <= found[name] <= 10, name
    text = span.SerializeToString()
    assert b"abcd" not in text and b"cde" not in text


def test_streams_chats_and_requests_that_end_otherwise_have_spans(traced):
    server, collector = traced
    assert server.chat(stream=True).status_code == 200
    _, span = collector.span()
    assert values(span)["gen_ai.response.finish_reasons"] == ["stop"] and not span.parent_span_id
    server.core.script.fail_after = 1
    assert server.completion(max_tokens=3).status_code == 500
    _, span = collector.span()
    assert values(span)["gen_ai.response.finish_reasons"] == ["error"] and span.status.code == 2
    assert server.completion(n=0).status_code == 400
    server.core.script.fail_after, server.core.script.step_s, server.core.script.once = 10**9, 0.01, False
    with server.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as stream:
        next(stream.iter_lines())
    _, span = collector.span()
    assert values(span)["gen_ai.response.finish_reasons"] == ["abort"]
    assert collector.got.empty()


def test_a_trace_that_is_not_sampled_has_no_span(traced):
    server, collector = traced
    for flag in ("00", "01"):
        server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1},
                           headers={"traceparent": f"00-{TRACE}-{PARENT}-{flag}"})  # fmt: skip
    assert collector.span() and collector.got.empty()


@pytest.mark.parametrize(
    ("endpoint", "protocol", "said"),
    [
        ("127.0.0.1:4317", "", r"--otlp-traces-endpoint 127.0.0.1:4317 is no address.*http://127\.0\.0\.1:4317"),
        ("ftp://x", "", "is no address of a collector"),
        ("http://x:1", "http/json", "TRACES_PROTOCOL=http/json is no protocol.*grpc or http/protobuf"),
        ("grpc://x:1", "http/protobuf", "give an http address"),
    ],
)
def test_what_cannot_be_an_endpoint_is_refused(endpoint, protocol, said, monkeypatch):
    monkeypatch.setenv(PROTOCOL_VARIABLES[0], protocol)
    with pytest.raises(UserError, match=said):
        open_traces(endpoint)


ABSENT = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "opentelemetry.sdk" or name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from engine.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_packages_the_start_ends_naming_them():
    command = [sys.executable, "-c", ABSENT, "serve", "--port", "0", "--otlp-traces-endpoint", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "opentelemetry-sdk and opentelemetry-exporter-otlp: pip install 'engine[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_flag_nothing_of_it_is_imported():
    code = (
        "import sys, engine.server.lifecycle, engine.server.app; "
        "sys.exit(any(name.startswith('opentelemetry.sdk') or name == 'grpc' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_server_sends_what_is_left_when_it_stops_and_waits_for_no_collector():
    with collecting("grpc") as collector:
        server = LiveServer(command=scripted(collector.url)).wait_ready()
        server.post("/v1/completions", prompt="a", max_tokens=2)
        server.process.terminate()
        assert collector.span()[1].name == "llm_request"
        assert server.wait_exit(30) == 0
    server = LiveServer(command=scripted("http://127.0.0.1:9")).wait_ready()
    server.post("/v1/completions", prompt="a", max_tokens=2)
    began = time.monotonic()
    server.process.terminate()
    assert server.wait_exit(30) == 0 and time.monotonic() - began < 20


def scripted(url):
    settings = f'{{"server.port": 0, "server.otlp_traces_endpoint": "{url}"}}'
    return [sys.executable, "-m", "tests.scripted_serve", settings]
