"""What interLink's own programs sent is understood."""

import pytest
from pydantic import TypeAdapter

from bridge.interlink import messages
from bridge.interlink.objects import Pod
from bridge.pools.interlink import references
from bridge.script import volumes
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import Allowance
from tests.fakes.interlink_bodies import FOLDER, body

MODELS = {
    "create_hop_a": messages.PodCreateRequests,
    "create_hop_b": messages.RetrievedPodData,
    "delete": Pod,
    "logs": messages.LogStruct,
    "status": list[Pod],
}


def model(name):
    return MODELS.get(name) or MODELS[name.partition("_hop_")[0]]


@pytest.mark.parametrize("name", sorted(path.stem.partition("-")[2] for path in FOLDER.glob("upstream-*.json")))
def test_each_body_is_accepted(name):
    TypeAdapter(model(name)).validate_python(body(f"upstream-{name}"))


def test_the_files_of_a_pod_are_the_same_on_both_hops():
    sent = (
        references.received_request(messages.PodCreateRequests.model_validate(body("upstream-create_hop_a"))),
        references.received_containers(
            body("upstream-create_hop_b")["pod"],
            messages.RetrievedPodData.model_validate(body("upstream-create_hop_b")).container,
        ),
    )
    for pod, objects in sent:
        made = volumes.make(pod, BuildConfig(), objects, "node", {}, Allowance()).files
        token, *others = sorted((file.path for file in made if file.path.startswith("kube-api-access")), reverse=True)
        assert token.endswith("/token")
        assert [path.partition("/")[2] for path in others] == ["namespace", "ca.crt"]
        assert sorted((file.path, file.data, file.mode) for file in made if "kube-api" not in file.path) == [
            ("credentials/password", b"s3cret", 0o400),
            ("credentials/user", b"alice", 0o400),
            ("settings/etc/config.yaml", b"a: 1\n", 0o400),
        ]
