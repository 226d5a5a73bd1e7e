"""Headers of HTTP probes, and the bytes of a gRPC request as bash writes them."""

import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

import bridge.script
from bridge.errors import ScriptError
from bridge.script.probes import ADDRESS, MAX_SERVICE, action

LIBRARY = Path(bridge.script.__file__).parent / "lib" / "probes.bash"


@pytest.mark.parametrize(
    "service", ["", "x", "a'b$(c)%s\\n", "ä" * 10, *("s" * n for n in (127, 128, 300, MAX_SERVICE))]
)
def test_grpc_request(service):
    done = subprocess.run(
        ["bash", "-c", '. "$0"; grpc_request "$1"', str(LIBRARY), service],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    message = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    assert done.stdout == b"\0" + len(message).to_bytes(4, "big") + message


def test_a_service_has_a_name_of_some_length():
    assert action({"grpc": {"port": 1, "service": "s" * MAX_SERVICE}}, "x", {}) is not None
    with pytest.raises(ScriptError, match=r"x\.grpc\.service"):
        action({"grpc": {"port": 1, "service": "ä" * (MAX_SERVICE // 2 + 1)}}, "x", {})


@pytest.mark.parametrize(
    ("version", "speaks"),
    [
        ("curl 7.88.1 (x86_64)\nFeatures: alt-svc HTTP2 HTTPS-proxy", True),
        ("curl 8.0.0 (x86_64)\nFeatures: HTTP2", True),
        ("curl 7.48.0 (x86_64)\nFeatures: HTTP2", False),
        ("curl 7.61.1 (x86_64)\nFeatures: HTTPS-proxy", False),
        ("what", False),
    ],
)
def test_which_curl_speaks_http2(version, speaks):
    done = subprocess.run(
        ["bash", "-c", '. "$0"; curl() { printf "%s\\n" "$said"; }; said=$1; speaks_http2', str(LIBRARY), version],
        check=False,
    )
    assert (done.returncode == 0) is speaks


def test_headers():
    headers = [{"name": "X", "value": "1"}, {"name": "X", "value": "2"}, {"name": "user-agent", "value": "me"}]
    made = action({"httpGet": {"port": 80, "httpHeaders": headers}}, "x", {})
    assert made is not None and made.words[2:] == [
        "GET / HTTP/1.1", f"Host: {ADDRESS}:80", "Accept: */*", "X: 1", "X: 2", "user-agent: me", "Connection: close",
    ]  # fmt: skip
    made = action({"httpGet": {"port": 80, "scheme": "HTTPS", "httpHeaders": headers}}, "x", {})
    assert made is not None and made.words[1:] == ["Accept: */*", "X: 1", "X: 2", "user-agent: me"]


@pytest.mark.parametrize("name", ["@/home/site/secret", "", "X: 1", "a b", "x\u00e4", "X;", "a_b"])
@pytest.mark.parametrize("scheme", ["HTTP", "HTTPS"])
def test_a_header_has_a_name_that_an_api_server_allows(name, scheme):
    """Curl reads the headers from a file if the text begins with @."""
    asked = {"httpGet": {"port": 80, "scheme": scheme, "httpHeaders": [{"name": "X", "value": "@x"}, {"name": name}]}}
    with pytest.raises(ScriptError, match=r"x\.httpGet\.httpHeaders\[1\]\.name: .* allowed: letters, digits and -"):
        action(asked, "x", {})


def test_the_address_of_a_host_by_ipv6_is_told_from_the_port():
    made = action({"httpGet": {"port": 80, "host": "::1", "scheme": "HTTPS"}}, "x", {})
    assert made is not None and made.words[0] == "https://[::1]:80/"
    made = action({"httpGet": {"port": 80, "host": "::1"}}, "x", {})
    assert made is not None and made.words[:4] == ["::1", "80", "GET / HTTP/1.1", "Host: [::1]:80"]
