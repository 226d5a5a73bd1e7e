from hypothesis import given
from hypothesis import strategies as st

from bridge.interlink import ping
from bridge.interlink.messages import PingResponse, as_json
from bridge.interlink.ping import capacity, ping_response, taints, total


def test_a_plugin_reports_resources_and_taints():
    made = ping_response(
        {"cpu": "128", "memory": "512Gi", "pods": "1k", "nvidia.com/gpu": "8", "x.io/part": "500m"},
        ["site=a:NoExecute"],
    )
    assert as_json(made) == {
        "status": "ok",
        "resources": {
            "cpu": "128",
            "memory": "512Gi",
            "pods": "1000",
            "accelerators": [
                {"resourceType": "nvidia.com/gpu", "available": "8"},
                {"resourceType": "x.io/part", "available": "0"},
            ],
        },
        "taints": [{"key": "site", "value": "a", "effect": "NoExecute"}],
    }
    assert taints(PingResponse.model_validate(as_json(made))) == ["site=a:NoExecute"]


def test_taints_that_are_not_set_do_not_change_the_node():
    assert "taints" not in as_json(ping_response({}, None))
    assert taints(PingResponse()) is None
    assert taints(PingResponse(taints=[])) == []


def test_values_that_a_virtual_kubelet_skips():
    told = PingResponse.model_validate(
        {
            "resources": {
                "cpu": 4,
                "memory": "much",
                "pods": "-1",
                "accelerators": [
                    {"resourceType": "a.com/gpu", "available": 2},
                    {"resourceType": "b.com/gpu", "available": "-1"},
                    {"resourceType": "", "available": "1"},
                    {"resourceType": "c.com/gpu", "available": "9" * 5000},
                ],
            },
            "taints": [
                {"key": "", "effect": "NoSchedule"},
                {"key": "k", "effect": "Never"},
                {"key": None, "value": "v"},
                {"key": "n", "value": None, "effect": None},
            ],
        }
    )
    assert capacity(told) == {"cpu": "4", "a.com/gpu": "2"}
    assert taints(told) == ["k=:NoSchedule", "n=:NoSchedule"]


NAMES = st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "a.io/b"])


@given(st.dictionaries(NAMES, st.integers(0, 10**12).map(str)))
def test_whole_numbers_survive_the_wire(resources):
    wire = as_json(ping_response(resources, None))
    assert capacity(PingResponse.model_validate(wire)) == resources


def test_the_sum_of_pools():
    assert total([{"cpu": "1500m", "memory": "1Gi"}, {"cpu": "2", "a.com/gpu": "1"}, {"cpu": "much"}]) == {
        "cpu": "3.5",
        "memory": "1073741824",
        "a.com/gpu": "1",
    }


def test_the_rest_of_a_long_list_is_not_read():
    most = ping.MOST_ENTRIES
    found, problem = ping.response({"taints": [{"key": "k"}] * most + [0] * 9, "resources": {"accelerators": None}})
    assert (len(found.taints), problem) == (most, "")
    accelerators = [{"resourceType": "a.com/b"}] * most + [0] * 9
    found, problem = ping.response({"resources": {"accelerators": accelerators}})
    assert (len(found.resources.accelerators), problem) == (most, "")
