import errno
import logging

import pytest

from bridge.apps.plugin.in_process import OWNER, InProcessClient
from bridge.errors import SiteRefusedError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import Empty, Snapshot
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, SNAPSHOT, STATUS, SUBMIT
from tests.fakes.interlink_bodies import body
from tests.unit.apps.plugin.conftest import Api, LoggingPool


class FullDisk:
    """A submitter whose folder cannot be written."""

    def submit(self, *args):
        raise OSError(errno.ENOSPC, "No space left on device")

    cancel = status = grant = files = snapshot = describe = submit

    def log(self, owner, job, options, wait):
        yield b"first\n"
        self.submit()


class SitePool(LoggingPool):
    """A pool whose site is in this process."""

    client = InProcessClient(FullDisk(), OWNER)

    def submit(self, pod, objects):
        if self.problem is not None:
            return self.client.call(SUBMIT, pod["metadata"]["uid"], None)
        return super().submit(pod, objects)

    def cancel(self, pod, grace, *, forget=False):
        if self.problem is not None:
            return self.client.call(CANCEL, pod["metadata"]["uid"], None)
        return super().cancel(pod, grace, forget=forget)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.call(SUBMIT, "u", None),
        lambda client: client.call(CANCEL, "u", None),
        lambda client: client.call(STATUS, "u", Empty()),
        lambda client: client.call(DESCRIBE, "", Empty()),
        lambda client: client.call(SNAPSHOT, "", Snapshot()),
    ],
)
def test_a_full_disk_is_a_refusal_of_the_site_that_may_pass(call, caplog):
    with pytest.raises(SiteRefusedError, match="failed at the site: OSError") as caught, caplog.at_level(logging.ERROR):
        call(InProcessClient(FullDisk(), OWNER))
    assert (caught.value.reason, caught.value.retryable) == ("InternalError", True)
    assert "No space left on device" in caplog.text


def test_an_error_within_a_log_is_one_of_the_site_and_the_end_is_none():
    client = InProcessClient(FullDisk(), OWNER)
    log = client.logs("u", LogOptions(container="main"))
    assert next(log) == b"first\n"
    with pytest.raises(SiteRefusedError):
        next(log)
    assert list(log) == []


def test_a_submission_is_repeated_and_a_cancellation_is_not_lost_while_the_disk_is_full():
    def wait(seconds):
        pool.problem = None
        return False

    pool = SitePool("pool")
    api = Api(pool, patience=60.0, wait=wait)
    pool.problem = OSError()
    assert api.create(body("create_hop_b")).status_code == 200
    pool.problem = OSError()
    pod = body("delete")
    assert api.call("DELETE", "/delete", pod).status_code == 503
    pool.problem = None
    api.handler.repeat_cancellations()
    assert pool.count("forget", pod["metadata"]["uid"]) == 1
