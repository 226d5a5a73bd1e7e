"""A receiver of traces by OTLP over HTTP, which decodes the protocol's own messages."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; times are seconds since 1970."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    start: float
    end: float
    attributes: dict[str, str]
    is_error: bool


class OtlpReceiver:
    """Listens on a free port of this machine. ``status`` is the answer to each request."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.tokens: set[str] = set()
        self.status = 200
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/v1/traces" or receiver.status != 200:
                    receiver.refused += 1
                    self.send_response(receiver.status if self.path == "/v1/traces" else 404)
                else:
                    receiver.tokens.add(self.headers.get("authorization", ""))
                    receiver._store(ExportTraceServiceRequest.FromString(body))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def of(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of the pod with this name."""
        return [span for span in list(self.spans) if span.attributes["k8s.pod.name"] == name]

    def _store(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = ReceivedSpan(
                        name=span.name,
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        service=about["service.name"],
                        start=span.start_time_unix_nano / 1e9,
                        end=span.end_time_unix_nano / 1e9,
                        attributes={entry.key: entry.value.string_value for entry in span.attributes},
                        is_error=span.status.code == 2,
                    )
                    self.spans.append(found)
