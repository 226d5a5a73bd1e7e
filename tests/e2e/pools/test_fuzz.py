"""Generated requests to the webhook and the kubelet API of a running podbridge."""

import pytest

from cluster import fuzz

pytestmark = pytest.mark.real


def test_no_request_breaks_or_grows_anything(pools_world, long):
    print(fuzz.run(pools_world.cluster, 100_000 if long else 2_000))
