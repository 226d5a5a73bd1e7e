"""Processes of podbridge that a test kills, or that kill themselves after a number of requests (``killed.py``)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from cluster import tools
from cluster.polling import eventually

PARTS = ("scheduler", "controllers")
CLOSE_WAIT = "08"
"""State of a socket in /proc/net/tcp: the client has closed the connection, and the server has not."""
LOG_TAIL = 20_000


class Victims:
    """Starts processes without leases, so that a successor works at once."""

    def __init__(self, cluster, settings=None):
        self._cluster = cluster
        own = tools.merged(yaml.safe_load((cluster.state / "podbridge.yaml").read_text()), settings or {})
        own |= {"leaderElection": {"leaderElect": False}, "serving": {"healthPort": None, "metricsPort": None}}
        self._file = cluster.state / "killed.yaml"
        self._file.write_text(yaml.safe_dump(own))
        self._calls = self._file.with_suffix(".calls")
        self._calls.write_text("")
        self._env = {**os.environ, **cluster.env, "KUBECONFIG": str(cluster.podbridge_kubeconfig)}
        self._env["PYTHONPATH"] = str(Path(__file__).parents[2])
        self._log = (cluster.state / "logs" / "killed.log").open("w")
        self._started = []

    def start(self, limit=0, parts=PARTS, seconds=0.0, counted="requests"):
        """Start a process; return its Popen.

        It kills itself after ``limit`` requests, or ``writes``, and ``seconds`` after its first request (0: never).
        """
        program = str(Path(__file__).parent / "killed.py")
        command = [sys.executable, program, str(limit), str(seconds), counted, str(self._file), *parts]
        process = subprocess.Popen(command, env=self._env, stdout=self._log, stderr=self._log)
        self._started.append(process)
        return process

    def kill(self, process):
        """Kill a process (SIGKILL) and wait for its end; return its exit status."""
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        status = process.wait()
        self._started.remove(process)
        return status

    def calls(self):
        """Return the cancellations and Bindings so far, each as a list of words (``killed.py``)."""
        lines = (line.split() for line in self._calls.read_text().splitlines())
        return [words for words in lines if words[0] != "write"]

    def settled(self):
        """Wait until slurmrestd has answered, or dropped, the requests of killed processes.

        With leases, the successor of a killed leader waits for a fixed time instead.
        """
        server = int(self._cluster.slurm_rest_url.rpartition(":")[2])

        def read():
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            return not any(line[3] == CLOSE_WAIT and int(line[1].rpartition(":")[2], 16) == server for line in lines)

        eventually(read, "slurmrestd has closed the connections of killed processes", 30)

    def close(self):
        """Kill all processes, and print the end of their log: pytest shows it when the test has failed."""
        for process in [*self._started]:
            self.kill(process)
        self._log.close()
        print(Path(self._log.name).read_text()[-LOG_TAIL:])
