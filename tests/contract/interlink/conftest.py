"""Plugins as processes: with the batch system ``local`` in the process, and over a real nats-server."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.contract.interlink.plugin_process import PluginProcess, Submitter, free_address, write_site

OWNER = "c1"


@pytest.fixture(scope="session")
def nats_url():
    address = free_address()
    host, _, port = address.partition(":")
    server = Path(sys.executable).parent / "nats-server"
    process = subprocess.Popen([str(server), "-a", host, "-p", port], stderr=subprocess.DEVNULL)
    try:
        yield f"nats://{address}"
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def _folder():
    path = Path(tempfile.mkdtemp(prefix="plugin-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _running(plugin):
    try:
        plugin.start()
        yield plugin
    finally:
        plugin.stop()


@pytest.fixture(scope="session")
def in_process():
    """A plugin with its own site, on a Unix domain socket."""
    with _folder() as folder:
        site = write_site(folder, "here")
        with _running(PluginProcess(folder, f"unix://{folder}/s", "--site", str(site))) as plugin:
            yield plugin


@pytest.fixture(scope="session")
def over_nats(nats_url):
    """A plugin with the pool of a submitter that is another process."""
    with _folder() as folder:
        site = write_site(folder, "there", f'[nats]\nservers = ["{nats_url}"]\n')
        submitter = Submitter(folder, site)
        submitter.start()
        try:
            arguments = ("--nats", nats_url, "--owner", OWNER)
            with _running(PluginProcess(folder, free_address(), *arguments)) as plugin:
                plugin.submitter = submitter
                yield plugin
        finally:
            submitter.stop()


@pytest.fixture(params=["in_process", "over_nats"])
def plugin(request):
    """A plugin of each kind."""
    return request.getfixturevalue(request.param)
