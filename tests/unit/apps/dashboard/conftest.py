"""The pages on caches in memory, with a client of the API server that answers from a table."""

import pytest

from bridge.apps.dashboard.changes import Changes
from bridge.apps.dashboard.dashboard_app import make_app
from bridge.apps.dashboard.page_access import LocalAccess, Viewer
from bridge.apps.dashboard.pages import Pages, Sources
from bridge.apps.dashboard.slurm_reader import SlurmState
from bridge.apps.view.pod_view import keep
from bridge.clock import SystemClock
from tests.fakes.kube_answers import KubeAnswers

HOST = "127.0.0.1:8088"


class TableClient(KubeAnswers):
    """Answers from a table, and with the same lines for each log."""

    def __init__(self, objects, logs=()):
        super().__init__(objects)
        self.logs, self.asked = list(logs), []

    def text(self, path, params, *, idle_timeout):
        self.asked.append((path, params))
        return iter(self.logs)


class Site:
    """The application, signed in as the user of a kubeconfig."""

    def __init__(self, pods=(), nodes=(), logs=(), may=None, access=None, sums=None, may_sums=True, pool_day=()):
        paths = {f"/api/v1/namespaces/{p['metadata']['namespace']}/pods/{p['metadata']['name']}": p for p in pods}
        self.client = TableClient(paths, logs)
        self.access = access or LocalAccess(self.client, nodes=True)
        if may is not None:
            self.access._viewer = Viewer("ann", "ann", self.client, may, lambda: may_sums)
        self.changes = Changes()
        sections = ("kubernetes", "conditions", "slurm", "places", "volumes", "nodes")
        self.report = {"summary": "pending", "next": "", **{name: [] for name in sections}}
        self.events = []
        self.slurm = SlurmState(sums, "") if sums is not None else SlurmState()
        sources = Sources(
            lambda: [keep(pod) for pod in pods],
            lambda: list(nodes),
            lambda: "",
            lambda *_: (self.report, self.events),
            lambda: self.slurm,
            lambda: pool_day,
        )
        pages = Pages(sources, self.changes, SystemClock())
        self.app = make_app(pages, self.access, lambda: {HOST})
        self.browser = self.app.test_client()

    def get(self, path, host=HOST, **more):
        return self.browser.get(path, headers={"Host": host}, base_url=f"http://{HOST}", **more)

    def sign_in(self):
        answer = self.get(f"/?token={self.access.token}")
        assert answer.status_code == 303
        return self


@pytest.fixture
def site():
    """Return a function that creates a :class:`Site` whose user has opened the URL with the token."""
    return lambda *args, **more: Site(*args, **more).sign_in()
