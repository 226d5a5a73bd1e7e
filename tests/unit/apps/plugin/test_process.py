import errno
import json
import os
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bridge.apps.plugin import listen
from bridge.apps.plugin.listen import Address
from bridge.apps.plugin.process import Options, Plugin
from bridge.core.threads import Supervisor
from bridge.errors import ConfigError
from bridge.serving.certificates import make_pair
from bridge.serving.client_access import Files
from tests.fakes.client_certificate import Authority, client_files
from tests.fakes.pool import FakePools
from tests.fakes.quick_stop import make_quick
from tests.unit.apps.plugin.conftest import LoggingPool

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104


class Source(FakePools):
    """A pool; with ``server``, its sites connect to one, which works."""

    every_pod = True

    def __init__(self, server=""):
        super().__init__(LoggingPool("pool", period=600))
        self.server, self.stopped = server, False

    def stop(self):
        self.stopped = True


@pytest.fixture
def start():
    made = []

    def run(options, server=""):
        supervisor, source = Supervisor(), Source(server)
        plugin = Plugin(source, options, supervisor)
        made.append((plugin, supervisor, source))
        for server in (plugin._server, *plugin._others):
            make_quick(server)
        plugin.start()
        return plugin

    yield run
    for plugin, supervisor, source in made:
        supervisor.stop()
        plugin.stop()
        assert source.stopped


def call(url, context=None, **headers):
    request = urllib.request.Request(url, data=b"", headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_token_is_required(tmp_path, start):
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    token.chmod(0o600)
    plugin = start(Options(Address(EVERYWHERE, 0), Files(token=token)))
    url = f"http://{LOOPBACK}:{plugin.port}/pinglink"
    assert call(url)[0] == 401
    status, text = call(url, Authorization="Bearer secret-token")
    assert (status, json.loads(text)["status"]) == (200, "ok")


def test_a_client_certificate_is_required(tmp_path, start):
    now = time.time()
    authority, pair = Authority(), make_pair([LOOPBACK], 3600, now=now)
    for name, content in (("tls.crt", pair.cert), ("tls.key", pair.key), ("ca.crt", authority.pem)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    files = Files(cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", client_ca=tmp_path / "ca.crt")
    plugin = start(Options(Address(EVERYWHERE, 0), files))
    url = f"https://{LOOPBACK}:{plugin.port}/pinglink"
    context = ssl.create_default_context(cadata=pair.ca.decode())
    assert call(url, context)[0] == 401
    context.load_cert_chain(client_files(tmp_path, authority))
    assert call(url, context)[0] == 200
    other = ssl.create_default_context(cadata=pair.ca.decode())
    other.load_cert_chain(client_files(tmp_path, Authority()))
    with pytest.raises((OSError, urllib.error.URLError)):
        call(url, other)


@pytest.mark.parametrize("host", [EVERYWHERE, LOOPBACK])
def test_a_port_needs_a_token_or_a_certificate_before_anything_starts(host):
    with pytest.raises(ConfigError, match="--token-file or --client-ca"):
        Plugin(Source(), Options(Address(host, 0)), Supervisor())


CONNECT = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
sys.exit(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))
"""


def connected(path, uid):
    """Return the error number with which a process of a user connects to a Unix domain socket."""
    return subprocess.run([sys.executable, "-S", "-c", CONNECT, str(path), str(uid)], check=False).returncode


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_cannot_use_the_default(start):
    """Neither the mode of the directory nor that of the socket alone is needed."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o711)
        address = listen.parse(listen.default(Path(home)))
        start(Options(address))
        assert stat.S_IMODE(address.unix.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(address.unix.stat().st_mode) == 0o600
        address.unix.parent.chmod(0o755)
        assert connected(address.unix, 0) == 0
        assert connected(address.unix, 65534) == errno.EACCES


@pytest.mark.parametrize(("server", "ready"), [("other", "[+]other ok"), ("", "[+]pools ok")], ids=["server", "pools"])
def test_health_and_metrics(start, server, ready):
    """A source whose sites connect to a server is ready without pools."""
    options = Options(Address(LOOPBACK, 0), health=Address(LOOPBACK, 0), metrics=Address(LOOPBACK, 0), local_users=True)
    plugin = start(options, server)
    call(f"http://{LOOPBACK}:{plugin.port}/pinglink")
    health, metrics = (server.port for server in plugin._others)
    with urllib.request.urlopen(f"http://{LOOPBACK}:{health}/readyz?verbose", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    assert {line for line in lines if "pools" in line or "other" in line} == {ready}
    with urllib.request.urlopen(f"http://{LOOPBACK}:{metrics}/metrics", timeout=5) as answer:
        assert 'podbridge_plugin_requests_total{code="200",route="/pinglink"}' in answer.read().decode()
