"""A relay of connections to a port, in place of a Service where no kube-proxy runs."""

import contextlib
import socket
import socketserver
import threading


class Relay(socketserver.ThreadingTCPServer):
    """Forwards the connections at ``address`` to ``upstream``: host and port, or the path of a unix socket."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address, upstream):
        self.upstream = upstream
        if isinstance(address, str):
            self.address_family = socket.AF_UNIX
        super().__init__(address, _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError), socket.create_connection(self.server.upstream, timeout=10) as upstream:
            upstream.settimeout(None)
            back = threading.Thread(target=_copy, args=(upstream, self.request), daemon=True)
            back.start()
            _copy(self.request, upstream)
            back.join()


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
