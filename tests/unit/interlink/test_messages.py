import pytest
from pydantic import TypeAdapter, ValidationError

from bridge.interlink import messages
from bridge.interlink.objects import Pod, Secret
from tests.fakes.interlink_bodies import STATES, body, status_answer


@pytest.mark.parametrize(
    ("told", "model"),
    [
        (body("create_hop_a"), messages.PodCreateRequests),
        (body("create_hop_b"), messages.RetrievedPodData),
        (body("create_answer"), messages.CreateStruct),
        (body("delete"), Pod),
        (body("logs"), messages.LogStruct),
        (body("logs_tail_follow"), messages.LogStruct),
        (body("ping_answer"), messages.PingResponse),
        (body("status"), list[Pod]),
        *((status_answer(name), list[messages.PodStatus]) for name in STATES),
        (body("system_info_answer"), messages.SystemInfo),
    ],
)
def test_a_recorded_body_is_accepted_and_written_with_the_same_keys(told, model):
    adapter = TypeAdapter(model)
    read = adapter.validate_python(told)
    again = adapter.dump_python(read, mode="json", by_alias=True)
    assert adapter.validate_python(again) == read
    if model not in (messages.RetrievedPodData, messages.PodCreateRequests):
        assert _without_empty(again) == _without_empty(told)


def _without_empty(value):
    if isinstance(value, dict):
        return {key: _without_empty(each) for key, each in value.items() if each not in (None, [], "")}
    if isinstance(value, list):
        return [_without_empty(each) for each in value]
    return value


def test_a_pod_stays_the_object_that_was_received():
    told = body("create_hop_b")
    assert messages.RetrievedPodData.model_validate(told).pod is told["pod"]


def test_null_is_an_empty_list_or_map():
    told = {"name": "c", "configMaps": None, "secrets": [{"metadata": {"name": "s"}, "data": None}]}
    read = messages.RetrievedContainer.model_validate(told)
    assert (read.config_maps, read.projected_volume_maps, read.secrets[0].data) == ([], [], {})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda told: told["pod"]["metadata"].pop("uid"), ("pod", "metadata", "uid")),
        (lambda told: told["pod"]["metadata"].update(name="A_b"), ("pod", "metadata", "name")),
        (lambda told: told["pod"]["spec"]["containers"].append({"name": 3}), ("pod", "spec", "containers", 2, "name")),
        (lambda told: told["container"][1]["secrets"][0].update(data=7), ("container", 1, "secrets", 0, "data")),
        (lambda told: told.pop("container"), ("container",)),
    ],
)
def test_an_error_names_the_path_of_the_field(change, path):
    told = body("create_hop_b")
    change(told)
    with pytest.raises(ValidationError) as caught:
        messages.RetrievedPodData.model_validate(told)
    assert [error["loc"] for error in caught.value.errors()] == [path]


def test_unknown_keys_are_ignored():
    told = {**body("create_hop_b"), "persistentVolumes": [{"a": 1}]}
    assert messages.RetrievedPodData.model_validate(told).container[1].name == "main"


def test_the_text_of_a_secret_does_not_show_its_values():
    secret = Secret.model_validate({"metadata": {"name": "s"}, "data": {"password": "aHVudGVyMg=="}})
    assert "aHVudGVyMg" not in repr(secret)
    told = messages.RetrievedPodData.model_validate(body("create_hop_b"))
    assert "eyJhbGciOiJSUzI1NiJ9" not in repr(told.container)


def test_a_script_that_is_absent_is_not_written():
    told = messages.RetrievedPodData.model_validate(body("create_hop_b"))
    assert "jobScript" not in messages.as_json(told)
