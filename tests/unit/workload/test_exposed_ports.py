"""The annotation ``bridge.vk.io/expose``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import services


def pod(text, *containers, **spec):
    annotations = {} if text is None else {"bridge.vk.io/expose": text}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": list(containers), **spec}}


def declaring(*ports, **more):
    return {
        "name": "c",
        "ports": [port if isinstance(port, dict) else {"containerPort": port} for port in ports],
    } | more


@pytest.mark.parametrize(
    ("text", "ports"),
    [(None, ()), ("8888", (8888,)), (" 9000, 8888 ,9000", (8888, 9000)), ("1,65535", (1, 65535))],
)
def test_numbers_need_no_declaration(text, ports):
    assert services.exposed_ports(pod(text)) == ports
    assert services.is_exposed(pod(text)) == bool(ports)


def test_true_stands_for_all_declared_tcp_ports_of_containers_and_sidecars():
    sidecar = declaring(7000, restartPolicy="Always")
    one = pod(
        "true",
        declaring(8000, {"containerPort": 53, "protocol": "UDP"}),
        declaring({"containerPort": 443, "protocol": "TCP"}),
        initContainers=[declaring(6000), sidecar],
    )
    assert services.exposed_ports(one) == (443, 7000, 8000)


@pytest.mark.parametrize("text", ["", "0", "65536", "80,", "-1", "http", "8e3", "٨", "08", "TRUE", "80 90", "8" * 400])
def test_other_texts_are_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match=r"annotation bridge\.vk\.io/expose: .* is not allowed.*; allowed: true"):
        services.exposed_ports(pod(text, declaring(80)))


def test_the_number_of_ports_is_limited():
    most = range(1, services.MOST_EXPOSED + 1)
    assert services.exposed_ports(pod(",".join(map(str, most)))) == tuple(most)
    with pytest.raises(ValueError, match="these are 17"):
        services.exposed_ports(pod(",".join(map(str, range(1, services.MOST_EXPOSED + 2)))))
    for ports, text in ((range(1, services.MOST_EXPOSED + 2), "declares 17 TCP ports"), ((), "declares 0 TCP ports")):
        with pytest.raises(ValueError, match=text):
            services.exposed_ports(pod("true", declaring(*ports)))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        ports = services.exposed_ports(pod(text))
    except ValueError:
        return
    assert 1 <= len(ports) <= services.MOST_EXPOSED and all(1 <= port < 2**16 for port in ports)
