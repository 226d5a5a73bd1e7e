"""An HTTP proxy between podbridge and slurmrestd with faults that a test switches on and off."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FaultyProxy:
    """Forwards requests to ``upstream``, an HTTP URL.

    ``fault`` is ``None``, an HTTP status (the proxy answers with an HTML page), ``hang`` (no answer) or ``reset`` (the
    connection is closed). ``forwarded`` and ``faults`` count the requests that were forwarded and those that were not.
    """

    def __init__(self, upstream):
        address = urlsplit(upstream)
        self.fault = None
        self.forwarded = 0
        self.faults = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.fault
                if fault is not None:
                    with proxy.lock:
                        proxy.faults += 1
                if fault == "hang":
                    proxy.release.wait(30)
                    self.close_connection = True
                    return
                if fault == "reset":
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self.answer(fault, "text/html", b"<html>no such page here</html>")
                    return
                upstream = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
                try:
                    upstream.request(self.command, self.path, body, dict(self.headers))
                    found = upstream.getresponse()
                    self.answer(found.status, found.headers.get("Content-Type", ""), found.read())
                except OSError:
                    self.answer(502, "text/plain", b"upstream is unreachable")
                finally:
                    upstream.close()
                with proxy.lock:
                    proxy.forwarded += 1

            def answer(self, status, kind, body):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815

        self.lock = threading.Lock()
        self.release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
