"""Starting while the API server comes and goes."""

from __future__ import annotations

import http.client
import importlib.util
import ssl
from pathlib import Path
from typing import Any

import pytest

from admission.server import Admission
from bridge.clock import FakeClock, SystemClock
from bridge.config import Config
from bridge.errors import BridgeError, KubeUnavailableError
from bridge.threads import Supervisor

_spec = importlib.util.spec_from_file_location("adm_test_tls", Path(__file__).with_name("test_tls.py"))
assert _spec is not None and _spec.loader is not None
_tls = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tls)


class Api(_tls.FakeApi):  # type: ignore[misc,name-defined]
    """The fake of the certificates' tests, which knows who asks and fails at chosen writes."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_at = ""

    def create(self, path: str, body: dict[str, Any], params: Any = None) -> dict[str, Any]:
        if self.fail_at and self.fail_at in path:
            raise KubeUnavailableError("down")
        if path.endswith("selfsubjectreviews"):
            return {"status": {"userInfo": {"username": "podbridge"}}}
        result: dict[str, Any] = super().create(path, body, params)
        return result


def test_a_start_that_failed_half_way_can_be_repeated() -> None:
    config = Config.model_validate({"admission": {"host": "127.0.0.1", "port": 0, "url": "https://127.0.0.1:1"}})
    api, supervisor = Api(), Supervisor()
    admission = Admission(config, api, supervisor, nodes=tuple, clock=SystemClock())  # type: ignore[arg-type]
    for step in ("selfsubjectreviews", "secrets", "mutatingwebhook", "validatingwebhook"):
        api.fail_at = step
        with pytest.raises(KubeUnavailableError):
            admission.start()
        assert admission.ready() is not None
    api.fail_at = ""
    admission.start()
    assert admission.ready() is None
    assert admission.server is not None
    context = ssl.create_default_context(cadata=admission._certificates.ca_bundle.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", admission.server.port, timeout=5, context=context)
    connection.request("POST", "/validate", b"{}")
    assert connection.getresponse().status == 400
    supervisor.stop()
    assert supervisor.join(10) == []
    assert supervisor.failure is None


def test_it_is_not_ready_with_a_certificate_that_has_expired() -> None:
    config = Config.model_validate({"admission": {"host": "127.0.0.1", "port": 0, "url": "https://127.0.0.1:1"}})
    clock, supervisor = FakeClock(1_800_000_000), Supervisor()
    admission = Admission(config, Api(), supervisor, nodes=tuple, clock=clock)  # type: ignore[arg-type]
    with pytest.raises(BridgeError, match="not started"):
        admission.rotate()
    admission.start()
    clock.advance(config.admission.cert_validity + 1)
    assert admission.ready() == "the certificate has expired"
    supervisor.stop()
    assert supervisor.join(10) == []
