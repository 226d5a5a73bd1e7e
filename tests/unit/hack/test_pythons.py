"""How the interpreter of another Python is found."""

import subprocess
import sys

import pytest

from cluster import places
from cluster.systems import debian, pythons

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_candidates_in_order_path_then_the_newest_of_pyenv_then_uv(tmp_path):
    on_path = script(tmp_path / "bin" / "python3.12", "exit 1")
    older = script(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "exit 1")
    newer = script(tmp_path / "pyenv" / "versions" / "3.12.4" / "bin" / "python3.12", "exit 1")
    script(tmp_path / "pyenv" / "versions" / "3.13.0" / "bin" / "python3.13", "exit 1")
    script(tmp_path / "bin" / "uv", f'[ "$5" = 3.12 ] && echo {tmp_path}/uv/python3.12')
    env = {"PATH": f"{tmp_path / 'none'}:{tmp_path / 'bin'}", "PYENV_ROOT": str(tmp_path / "pyenv")}
    found = list(pythons.candidates("3.12", env))
    assert found == [on_path, newer, older, tmp_path / "uv" / "python3.12"]


def test_an_interpreter_that_fails_has_no_version(tmp_path):
    assert pythons.version_of(script(tmp_path / "shim", "echo 'command not found' >&2; exit 127")) == ""
    assert pythons.version_of(tmp_path / "none") == ""


def test_a_shim_that_fails_is_skipped(tmp_path, monkeypatch):
    script(tmp_path / "bin" / f"python{OWN}", "exit 127")
    good = script(tmp_path / "pyenv" / "versions" / f"{OWN}.1" / "bin" / f"python{OWN}", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(pythons.shutil, "which", lambda *_, **__: None)
    assert pythons.find(OWN) in (good, *(path for path in pythons.candidates(OWN, {"PATH": "/usr/bin:/bin"})))


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """A machine without any other Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))


def test_a_version_that_cannot_be_had_names_the_ways_to_get_it(nothing, capsys):
    assert "3.12" not in debian.PYTHONS
    with pytest.raises(pythons.MissingPythonError, match=r"pyenv install 3\.12"):
        pythons.find("3.12")


def test_without_root_debian_cannot_serve(nothing, monkeypatch):
    monkeypatch.setattr(pythons.os, "geteuid", lambda: 1000)
    with pytest.raises(pythons.MissingPythonError, match="as root: it then comes from Debian sid"):
        pythons.find("3.14")


@pytest.mark.parametrize("words", [[], ["3.10"], ["3.12", "3.13"]])
def test_other_arguments_are_refused(words, capsys):
    assert pythons.main(words) == 1
    assert "allowed are 3.11, 3.12" in capsys.readouterr().err


def test_the_exit_code_of_a_missing_python(nothing, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PODBRIDGE_CACHE", str(tmp_path / "cache"))
    assert pythons.main(["3.12"]) == pythons.MISSING
    assert f"$status -eq {pythons.MISSING} ]]" in (places.CHECKOUT / "hack" / "test.sh").read_text()


def test_the_launcher_runs_the_interpreter_by_the_linker_of_its_suite(tmp_path, monkeypatch):
    """The real linker and libraries of this machine, in the place of the suite's."""
    monkeypatch.setenv("PODBRIDGE_CACHE", str(tmp_path))
    root = tmp_path / "roots" / "sid"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "lib").symlink_to("/usr/lib")
    (root / "lib64").symlink_to("/lib64")
    (root / "usr" / "bin" / "python3.14").symlink_to("/bin/echo")
    launcher = debian.python_launcher("3.14")
    done = subprocess.run([launcher, "-c", "two words"], capture_output=True, text=True, check=True)
    assert done.stdout == "-c two words\n"
