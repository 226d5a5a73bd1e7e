"""The wheel of this checkout, and programs that run without the variables that name this checkout."""

import os
import subprocess

import pytest

from bridge import __version__
from cluster import places

RELEASE = places.CHECKOUT / "hack/release.sh"


def clean():
    """Return the environment variables without those that name this checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PODBRIDGE_CONFIG"))}


def run(*command, **changes):
    return subprocess.run(command, capture_output=True, text=True, env=clean() | changes, cwd="/", check=False)


def successful(*command, **changes):
    done = run(*command, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Wheel and sdist of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    successful(RELEASE, "--wheel", folder)
    return folder


@pytest.fixture(scope="session")
def wheel(built):
    return built / f"podbridge-{__version__}-py3-none-any.whl"
