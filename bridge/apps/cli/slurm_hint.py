"""``podbridge slurm-hint``: tells podbridge's processes that a job of Slurm (``SLURM_JOB_ID``) began or ended.

slurmctld runs it before each job and after it, and requeues a job whose prolog fails. So it starts fast (this module
imports only what it needs), ends after ``--timeout`` seconds in any case, and exits with 0 unless its options are
wrong.
"""

from __future__ import annotations

import argparse
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from bridge.apps.cli import process_end

MOST_TARGETS = 16
"""Pipes of a directory, or addresses of a host name."""
_REQUEST = "POST /hint{query} HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"


def run(arguments: Sequence[str]) -> int:
    """Send the hints and return the exit status: 0, also if no process got the hint; 2 if the options are wrong."""
    try:
        options = _options(arguments)
    except SystemExit as error:  # from argparse
        return int(error.code or 0)
    end = time.monotonic() + options.timeout
    calls = [partial(_directory, directory) for directory in options.directory]
    calls += [partial(_url, url, options) for url in options.url]
    threads = [threading.Thread(target=_guard, args=(call,), name="slurm-hint", daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return 0


def main() -> None:
    """Run the command, and end the process even if a thread still waits for the resolver or for a connection."""
    process_end.end(run(sys.argv[2:]))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="podbridge slurm-hint",
        allow_abbrev=False,
        description="Tell podbridge that the job SLURM_JOB_ID of Slurm began or ended, so that it reads it at once. "
        "For scripts in PrologSlurmctld and EpilogSlurmctld. The exit status is 0 even if no process got the hint.",
    )
    parser.add_argument(
        "--directory", action="append", default=[], metavar="DIR", help="hints.directory of podbridge. Can be repeated."
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        type=_https_url,
        metavar="https://HOST:PORT",
        help="hints.port of podbridge; all addresses of HOST get the hint. Can be repeated.",
    )
    parser.add_argument("--token-file", metavar="FILE", help="File with the token. Required with --url.")
    parser.add_argument("--ca-file", metavar="FILE", help="CA certificates, instead of those of the machine.")
    parser.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="More than 0, at most 10. Default: 1."
    )
    options = parser.parse_args(arguments)
    if not options.directory and not options.url:
        parser.error("one of --directory and --url is required")
    if options.url and not options.token_file:
        parser.error("--url requires --token-file")
    return options


def _https_url(text: str) -> tuple[str, int]:
    host, colon, port = text.removeprefix("https://").rstrip("/").rpartition(":")
    good = text.startswith("https://") and colon and host and "/" not in host and port.isascii() and port.isdecimal()
    if not good or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: https://HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: more than 0, at most 10")
    return value


def _guard(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        _warn(str(error))


def _warn(text: str) -> None:
    print(f"podbridge slurm-hint: {text}", file=sys.stderr)


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run the calls, each in a thread if there are several: a silent target must not delay the others."""
    if len(calls) == 1:
        calls[0]()
        return
    threads = [threading.Thread(target=_guard, args=(call,), name="slurm-hint", daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _directory(directory: str) -> None:
    names = sorted(name for name in os.listdir(directory) if name.endswith(".pipe"))[:MOST_TARGETS]
    if not names:
        _warn(f"no pipe in {directory}")
    for name in names:
        try:
            _write(f"{directory}/{name}")
        except OSError as error:
            _warn(f"{directory}/{name}: {error.strerror}")


def _write(path: str) -> None:
    """Write the hint into a pipe, without waiting for its reader, and never into another file."""
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            os.write(pipe, f"{_job()}\n".encode())
    finally:
        os.close(pipe)


def _job() -> str:
    """Return the id of the job; empty if the environment has none."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return job if job.isascii() and job.isdecimal() and len(job) <= 10 else ""


def _url(url: tuple[str, int], options: argparse.Namespace) -> None:
    import ssl

    host, port = url
    with open(options.token_file) as file:
        token = file.read().strip()
    context = ssl.create_default_context(cafile=options.ca_file)
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in resolved))[:MOST_TARGETS]

    def send(family: int, address: tuple[object, ...]) -> None:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(options.timeout)
                connection.connect(address)
                with context.wrap_socket(connection, server_hostname=host) as secured:
                    _exchange(secured, str(address[0]), host, f"Authorization: Bearer {token}\r\n")
        except OSError as error:
            _warn(f"{address[0]}: {error}")

    _at_once([partial(send, family, address) for family, address in addresses])


def _exchange(connection: socket.socket, target: str, host: str, more: str) -> None:
    job = _job()
    query = f"?job={job}" if job else ""
    connection.sendall(_REQUEST.format(query=query, host=host, more=more).encode())
    status = connection.recv(1024).split(b"\r\n", 1)[0].decode("latin-1")
    if " 202 " not in f"{status} ":
        _warn(f"{target}: {status or 'no answer'}")
