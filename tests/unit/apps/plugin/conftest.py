import json

import pytest

from bridge.apps.plugin.directory import Directory
from bridge.apps.plugin.plugin_app import make_app
from bridge.apps.plugin.plugin_pods import Pods
from bridge.apps.plugin.plugin_reports import Reports
from bridge.serving.client_access import Files, ServerAccess
from tests.fakes.clock import FakeClock
from tests.fakes.pool import FakePool, one_pool


class LoggingPool(FakePool):
    """A pool with a log for each job of its site."""

    def __init__(self, name, **announced):
        super().__init__(name, **announced)
        self.read = []

    def logs(self, pod, options):
        self.read.append((pod["metadata"]["uid"], options))
        yield f"log of {pod['metadata']['uid']}\n".encode()


class Api:
    """The application with its pools."""

    def __init__(self, *pools, patience=0.0, by_toleration=False, wait=lambda seconds: False, loopback=True):
        self.pools = {pool.name: pool for pool in pools}
        self.clock = FakeClock()
        directory = one_pool(pools[0]) if not by_toleration else Directory(lambda: self.pools)
        for pool in pools:
            pool.heard = (pool.heard[0], self.clock.monotonic())
        self.handler = Pods(directory, wait, patience)
        self.app = make_app(
            self.handler, Reports(directory, self.clock, wait), ServerAccess(Files()), self.clock, loopback=loopback
        )
        self.client = self.app.test_client()

    def heard(self, pool, **values):
        pool.announce(**values)
        pool.heard = (pool.heard[0], self.clock.monotonic())

    def call(self, method, path, content=None, **more):
        return self.client.open(path, method=method, data=None if content is None else json.dumps(content), **more)

    def create(self, content):
        return self.call("POST", "/create", content)

    def status(self, *pods):
        answer = self.call("GET", "/status", list(pods))
        assert answer.status_code == 200, answer.text
        return answer.json


@pytest.fixture
def pool():
    return LoggingPool("pool")


@pytest.fixture
def api(pool):
    return Api(pool)
