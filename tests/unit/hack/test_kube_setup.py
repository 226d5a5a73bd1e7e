import base64
import ipaddress
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from cluster import pki
from cluster.kube import KubeSetup, is_ready, node_object
from cluster.slurm import Size

BINARIES = {
    name: Path("/bin") / name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kwok")
}


@pytest.mark.parametrize(
    ("options", "daemons"),
    [
        ({}, ["etcd", "kube-apiserver", "kube-controller-manager", "kwok"]),
        ({"controller_manager": False}, ["etcd", "kube-apiserver", "kwok"]),
        ({"kwok": False, "controller_manager": False}, ["etcd", "kube-apiserver"]),
    ],
)
def test_daemons_can_be_left_out(options, daemons):
    assert list(KubeSetup(Path("/k"), 20000, BINARIES, **options).daemons()) == daemons


def test_no_two_daemons_share_a_port():
    text = json.dumps(KubeSetup(Path("/k"), 20000, BINARIES).daemons())
    assert {port for port in range(20000, 20010) if str(port) in text} == set(range(20000, 20005))


def test_audit_is_kept_only_when_asked_for():
    plain = KubeSetup(Path("/k"), 20000, BINARIES).daemons()["kube-apiserver"]
    kept = KubeSetup(Path("/k"), 20000, BINARIES, audit=Path("/a.log")).daemons()["kube-apiserver"]
    assert [word for word in kept if word not in plain] == [
        "--audit-policy-file=/k/audit-policy.yaml",
        "--audit-log-path=/a.log",
    ]


def test_a_node_is_as_big_as_slurms():
    status = node_object("node-3", Size(cpus=64, memory=1000, gpus=2))["status"]
    assert {key: status["allocatable"][key] for key in ("cpu", "memory", "nvidia.com/gpu")} == {
        "cpu": "64",
        "memory": "1000Mi",
        "nvidia.com/gpu": "2",
    }
    assert "nvidia.com/gpu" not in node_object("node-3", Size(gpus=0))["status"]["capacity"]


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, False),
        ({"conditions": None}, False),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, False),
        ({"conditions": [{"type": "MemoryPressure", "status": "True"}]}, False),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, True),
    ],
)
def test_a_node_is_ready_when_its_condition_says_so(status, ready):
    assert is_ready({"status": status}) is ready


def test_a_kubeconfig_carries_user_and_groups_signed_by_the_authority(tmp_path):
    authority = pki.Authority(tmp_path, "ca")
    pair = authority.issue("system:serviceaccount:a:b", ("one", "two"))
    content = json.loads(pki.kubeconfig("https://127.0.0.1:1", authority, pair, "user"))
    data = base64.b64decode(content["users"][0]["user"]["client-certificate-data"])
    certificate = x509.load_pem_x509_certificate(data)
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "system:serviceaccount:a:b"
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [group.value for group in groups] == ["one", "two"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.read_bytes()))


def test_pairs_load_and_keys_are_private(tmp_path):
    authority = pki.Authority(tmp_path, "ca")
    certificate, key = authority.write(tmp_path / "server", "server", hosts=("127.0.0.1", "localhost"))
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    assert key.stat().st_mode & 0o077 == 0
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0


def test_an_authority_stays_the_same(tmp_path):
    first = pki.Authority(tmp_path, "ca").certificate.read_bytes()
    assert pki.Authority(tmp_path, "ca").certificate.read_bytes() == first


def test_pods_reach_the_api_server_only_where_it_is_asked_for(tmp_path):
    plain = KubeSetup(tmp_path / "a", 20000, BINARIES)
    open_to_pods = KubeSetup(tmp_path / "b", 20000, BINARIES, address="192.0.2.7")
    assert "--bind-address=0.0.0.0" not in plain.daemons()["kube-apiserver"]
    assert open_to_pods.daemons()["kube-apiserver"][-2:] == [
        "--bind-address=0.0.0.0",
        "--enable-aggregator-routing=true",
    ]
    found = []
    for setup in (plain, open_to_pods):
        setup.write()
        certificate = x509.load_pem_x509_certificate((setup.folder / "apiserver.crt").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found.append(ipaddress.ip_address("192.0.2.7") in names.get_values_for_type(x509.IPAddress))
    assert found == [False, True]
