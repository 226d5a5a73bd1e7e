"""Files of volumes on their way to a site: in requests of a limited size, and none breaks the connection."""

import os

import pytest

from bridge.errors import SiteTooLargeError
from bridge.pools.submitter.site_requests import PORTION, portions
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.model.requests import VolumeFile
from bridge.protocol.nats.envelope import pack
from bridge.protocol.nats.request_table import FILES
from tests.fakes.clock import FakeClock

POD = {"metadata": {"uid": "u1"}}


class Client:
    """A connection over which a message has ``most`` bytes at most."""

    def __init__(self, most):
        self.most, self.got, self.lists = most, [], []

    def call(self, kind, job, files):
        assert (kind, job) == (FILES, "u1")
        size = len(pack(files))
        if size > self.most:
            raise SiteTooLargeError(f"a message of {size} bytes", hint="Raise max_payload")
        self.got.append([file.path for file in files.files])
        self.lists.append(files.volumes)


def file(name, size=10):
    return VolumeFile(path=f"v/{name}", data=bytes(range(256)) * (size // 256) or b"x", mode=0o644)


def sent(client, *files, **volumes):
    SubmitterPool("site", "c1", lambda _: client, FakeClock(0.0)).refresh(POD, files, volumes)


def test_requests_have_a_limited_size():
    files = [file(n, PORTION // 2) for n in range(5)] + [file("large", 3 * PORTION), file("last")]
    found = list(portions(files))
    assert [each for portion in found for each in portion] == files
    assert all(sum(len(each.data) for each in portion) <= PORTION or len(portion) == 1 for portion in found)
    assert list(portions([])) == []


def test_an_object_of_the_largest_size_passes_podbridges_servers():
    client = Client(8 * 2**20)
    sent(client, *(file(n, 2**20 // 4) for n in range(4)), file("one", 2**20), v=["0", "1", "2", "3", "one"])
    assert [path for paths in client.got for path in paths] == ["v/0", "v/1", "v/2", "v/3", "v/one"]
    assert client.lists[-1] == {"v": ["0", "1", "2", "3", "one"]}
    assert not any(client.lists[:-1]), "no file is removed before all others have arrived"


def test_a_file_that_is_too_large_is_left_out_with_its_name(monkeypatch):
    client = Client(2**12)
    monkeypatch.setattr("bridge.pools.submitter.site_requests.PORTION", 1)
    large = VolumeFile(path="v/large", data=os.urandom(2**19), mode=0o644)
    with pytest.raises(SiteTooLargeError, match=r"^v/large: a message of") as told:
        sent(client, file("a"), large, file("z"), v=["a", "large", "z"])
    assert told.value.hint == "Raise max_payload" and not told.value.retryable
    assert client.got == [["v/a"], ["v/z"], []] and client.lists[-1] == {"v": ["a", "large", "z"]}
