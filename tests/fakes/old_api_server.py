"""An API server before Kubernetes 1.34: it does not serve resource.k8s.io/v1."""

from bridge.errors import KubeUnavailableError


class OldApiServer:
    """Answers each request with 404 in plain text, and serves core/v1 and apps/v1 only by its discovery.

    ``reachable``: false if a proxy answers instead of it. ``calls`` are the paths that were requested.
    """

    def __init__(self, reachable=True):
        self.calls = []
        self.reachable = reachable

    def get(self, path, params=None, **_):
        self.calls.append(path)
        if path == "/apis" and self.reachable:
            return {"groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1"}]}]}
        raise KubeUnavailableError(f"GET {path}: not an answer of an API server (404)", status=404)
