"""``python -m cluster.systems.pythons VERSION``: an environment of another Python, with the packages of the lock file.

An interpreter comes from PATH, from pyenv, from uv or from the root folder of a Debian suite. pyenv's shims of versions
that are not active fail, so each candidate is run before it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError
from cluster.steps import locked, run_long, say
from cluster.systems import debian

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions that pyproject.toml classifies podbridge with."""
MISSING = 77
"""The exit code for a Python that cannot be had; ``hack/test.sh --long`` then skips it."""
_PROBE = "import ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"


class MissingPythonError(ClusterError):
    """No interpreter of the version is here, and Debian's suites in use have none."""


def main(argv: list[str] | None = None) -> int:
    """Print the interpreter of the environment of a version; make the environment if it is missing."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if len(words) != 1 or words[0] not in VERSIONS:
            raise ClusterError(f"--python {' '.join(words)}: allowed are {', '.join(VERSIONS)}")
        print(environment(words[0]))
    except MissingPythonError as error:
        say(f"error: {error}")
        return MISSING
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


def environment(version: str) -> Path:
    """Return the interpreter of an environment with the packages of ``requirements-dev.lock``, in the cache."""
    lock = places.CHECKOUT / "requirements-dev.lock"
    folder = places.cache() / f"venv-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}-{version}"
    interpreter, complete = folder / "bin" / "python", folder / ".complete"
    with locked(f"python-{version}"):
        if complete.exists() and version_of(interpreter) == version:
            return interpreter
        base = find(version)
        say(f"making a Python environment in {folder} with {base} (some 2 minutes, once)")
        shutil.rmtree(folder, ignore_errors=True)
        # Debian's packages of Python have no ensurepip
        run_long(f"venv {version}", [str(base), "-m", "venv", "--without-pip", str(folder)], "lines", env=_ENV)
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--disable-pip-version-check"]
        run_long(f"pip install {version}", [*pip, "--require-hashes", "-r", str(lock)], "lines", env=_ENV)
        complete.touch()
    return interpreter


_ENV = {"PYTHONPATH": ""}
"""The checkout is no part of what pip and venv see."""


def find(version: str) -> Path:
    """Return an interpreter of the version: one of this machine, else that of a Debian suite."""
    for candidate in candidates(version, os.environ):
        if version_of(candidate) == version:
            return candidate
    if version not in debian.PYTHONS:
        raise MissingPythonError(
            f"Python {version} is not on this machine, and no Debian suite that the tests use has it. "
            f"Put python{version} on PATH, or run `pyenv install {version}` or `uv python install {version}`"
        )
    if os.geteuid() != 0:
        raise MissingPythonError(
            f"Python {version} is not on this machine. Put python{version} on PATH, or run this as root: "
            f"it then comes from Debian {debian.PYTHONS[version][0]}"
        )
    with locked():
        name = f"python{version}"
        debian.ensure_added(name)
        return debian.python_launcher(version)


def candidates(version: str, env: os._Environ[str] | dict[str, str]) -> Iterator[Path]:
    """Yield paths that may be an interpreter of the version, in the order of preference."""
    for folder in filter(None, env.get("PATH", "").split(os.pathsep)):
        if (found := Path(folder) / f"python{version}").exists():
            yield found
    pyenv = Path(env.get("PYENV_ROOT") or Path(env.get("HOME", "/")) / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{version}.*/bin/python{version}"), reverse=True)
    if uv := shutil.which("uv", path=env.get("PATH")):
        command = [uv, "python", "find", "--no-python-downloads", "--system", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())


def version_of(interpreter: Path) -> str:
    """Return the version of an interpreter that can make environments, such as ``3.13``; empty if it cannot."""
    try:
        command = [str(interpreter), "-c", _PROBE]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
