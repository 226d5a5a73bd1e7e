"""Start while the API server is unavailable at times."""

import http.client
import ssl

import pytest

from admission.admission_app import Admission
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.errors import KubeUnavailableError
from tests.fakes.clock import FakeClock
from tests.fakes.objects_api import FakeApi


def test_a_start_that_failed_half_way_can_be_repeated() -> None:
    config = Config.model_validate({"admission": {"host": "127.0.0.1", "port": 0, "url": "https://127.0.0.1:1"}})
    api, supervisor = FakeApi(), Supervisor()
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
    admission = Admission(config, FakeApi(), supervisor, nodes=tuple, clock=clock)  # type: ignore[arg-type]
    admission.start()
    clock.advance(config.admission.cert_validity + 1)
    assert admission.ready() == "the certificate has expired"
    supervisor.stop()
    assert supervisor.join(10) == []
