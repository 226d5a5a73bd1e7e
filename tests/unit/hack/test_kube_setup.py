import ipaddress
from pathlib import Path

from cryptography import x509

from cluster.systems.kube import KubeSetup

BINARIES = {
    name: Path("/bin") / name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kwok")
}


def test_audit_is_kept_only_when_asked_for():
    plain = KubeSetup(Path("/k"), 20000, BINARIES).daemons()["kube-apiserver"]
    kept = KubeSetup(Path("/k"), 20000, BINARIES, audit=Path("/a.log")).daemons()["kube-apiserver"]
    assert [word for word in kept if word not in plain] == [
        "--audit-policy-file=/k/audit-policy.yaml",
        "--audit-log-path=/a.log",
    ]


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
