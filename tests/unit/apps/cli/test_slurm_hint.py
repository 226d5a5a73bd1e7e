"""``podbridge slurm-hint`` against the servers of a hub: its exit status, its time and its imports."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.apps.cli.slurm_hint import run
from bridge.apps.hub.hub_hints import HintServers
from bridge.config.hub import HintsSection, parse
from bridge.core.threads import Supervisor
from bridge.errors import ConfigError
from bridge.serving.certificates import make_pair
from cluster.polling import eventually

ROOT = Path(__file__).parents[4]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hints-") as folder:
        yield Path(folder)


@pytest.fixture
def start() -> Iterator[Callable[[HintsSection], tuple[HintServers, list[int | None]]]]:
    """Start the servers of a hub; return them, and the jobs of the hints."""
    supervisor = Supervisor()

    def start(settings: HintsSection) -> tuple[HintServers, list[int | None]]:
        hints: list[int | None] = []

        def wake(job_id: int | None) -> bool:
            hints.append(job_id)
            return True

        servers = HintServers(settings, ["scheduler", "controllers"], wake)
        servers.start(supervisor)
        return servers, hints

    yield start
    supervisor.stop()
    assert supervisor.join(10) == []
    assert supervisor.failure is None


def tls_settings(folder: Path) -> HintsSection:
    pair = make_pair(["localhost", "127.0.0.1"], 3600, now=time.time())
    files = {"cert": pair.cert, "key": pair.key, "ca": pair.ca, "token": b"secret\n"}
    for name, content in files.items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)
    return HintsSection(
        host="127.0.0.1", port=0, token_file=folder / "token", cert_file=folder / "cert", key_file=folder / "key"
    )


def test_each_pipe_of_the_directory_gets_the_hint(
    directory: Path,
    start: Callable[[HintsSection], tuple[HintServers, list[int | None]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = HintsSection(directory=directory)
    (_, first), (_, second) = start(settings), start(settings)
    eventually(lambda: len(list(directory.glob("*.pipe"))) == 2)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert run(["--directory", str(directory)]) == 0
    eventually(lambda: (first, second) == ([17], [17]))
    monkeypatch.setenv("SLURM_JOB_ID", "none")
    assert run(["--directory", str(directory)]) == 0
    eventually(lambda: (first, second) == ([17, None], [17, None]))


def test_https_with_a_token(
    tmp_path: Path,
    start: Callable[[HintsSection], tuple[HintServers, list[int | None]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers, hints = start(tls_settings(tmp_path))
    eventually(lambda: servers.port)
    url = f"https://127.0.0.1:{servers.port}"
    words = ["--url", url, "--token-file", str(tmp_path / "token"), "--ca-file", str(tmp_path / "ca")]
    assert run(words) == 0
    assert hints == [None]
    assert capsys.readouterr().err == ""
    (tmp_path / "wrong").write_text("wrong")
    assert run([*words[:2], "--token-file", str(tmp_path / "wrong"), *words[4:]]) == 0
    assert "401" in capsys.readouterr().err
    assert run(words[:4]) == 0, "an unknown CA"
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert hints == [None]


def command(*words: str) -> tuple[int, float, str]:
    code = "import sys; sys.argv[0] = 'podbridge'; from bridge.apps.cli.entry import main; main()"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "slurm-hint", *words], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    return done.returncode, time.monotonic() - began, done.stderr


def test_a_silent_podbridge_does_not_delay_slurmctld(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        status, seconds, _ = command("--url", url, "--token-file", str(tmp_path / "token"), "--timeout", "0.3")
    assert status == 0
    assert seconds < 5, "0.3 s and the start of Python"


def test_a_pipe_that_no_process_reads_is_no_error(directory: Path) -> None:
    os.mkfifo(directory / "podbridge-killed.pipe")
    (directory / "job_state").write_text("state")
    (directory / "podbridge-link.pipe").symlink_to(directory / "job_state")
    status, _, text = command("--directory", str(directory))
    assert status == 0
    assert "podbridge-killed.pipe: No such device" in text
    assert "podbridge-link.pipe: Too many levels" in text
    assert (directory / "job_state").read_text() == "state"


def test_no_podbridge_is_no_error(directory: Path) -> None:
    assert command("--directory", str(directory))[0] == 0
    status, _, text = command("--directory", str(directory / "absent"))
    assert status == 0
    assert "absent" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--directory and --url"),
        (["--url", "http://a:1", "--token-file", "t"], "allowed: https://HOST:PORT"),
        (["--url", "https://a", "--token-file", "t"], "allowed: https://HOST:PORT"),
        (["--url", "https://a:99999", "--token-file", "t"], "allowed: https://HOST:PORT"),
        (["--url", "https://a:1"], "--token-file"),
        (["--directory", "/d", "--timeout", "0"], "more than 0, at most 10"),
        (["--directory", "/d", "--timeout", "nan"], "more than 0, at most 10"),
    ],
)
def test_wrong_options_name_what_is_allowed(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert message in capsys.readouterr().err


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import bridge.apps.cli.entry, bridge.apps.cli.slurm_hint;"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bridge"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hints: {port: 10443}", "tokenFile, certFile, keyFile"),
        ("hints: {port: 10443, tokenFile: /t, certFile: /c}", "not set: keyFile"),
        ("hints: {directory: run}", "absolute path"),
        ("hints: {maxPollRate: 0}", "greater than 0"),
    ],
)
def test_a_wrong_configuration_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigError, match=r"hints\.tokenFile: .* is open to other users"):
        HintServers(settings, ["scheduler"], lambda _: True)


def test_a_directory_that_is_missing_does_not_end_the_hub(
    directory: Path,
    start: Callable[[HintsSection], tuple[HintServers, list[int | None]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.apps.hub.hub_hints.RETRY_PERIOD", 0.05)
    late = directory / "late"
    _, hints = start(HintsSection(directory=late))
    time.sleep(0.2)
    late.mkdir()
    eventually(lambda: any(late.glob("*.pipe")))
    run(["--directory", str(late)])
    eventually(lambda: hints == [None])


def test_the_consumer_of_the_documentation_sends_a_hint_for_each_record(
    directory: Path, start: Callable[[HintsSection], tuple[HintServers, list[int | None]]]
) -> None:
    _, hints = start(HintsSection(directory=directory))
    eventually(lambda: any(directory.glob("*.pipe")))
    page = (ROOT / "docs/admins/slurm-hints.md").read_text()
    [script] = [block for block in page.split("```") if block.startswith("bash\nkcat")]
    consumer, colon, rest = script.removeprefix("bash\n").partition("|")
    records = """'{"account":"a","jobid":17,"state":"COMPLETED"}' '{"jobid": 18}' '{"error": 19}'"""
    program = f"{shlex.quote(sys.executable)} -c 'from bridge.apps.cli.slurm_hint import main; main()'"
    rest = rest.replace("/etc/slurm/podbridge-hint", f"{program} slurm-hint --directory {directory}")
    assert consumer.startswith("kcat")
    command = f"printf '%s\\n' {records} {colon}{rest}"
    assert subprocess.run(["sh", "-c", command], timeout=30, cwd=ROOT).returncode == 0
    eventually(lambda: hints == [17, 18])
