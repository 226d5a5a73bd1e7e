"""podbridge's scheduler, controllers or both in a process that kills itself right after its N-th request (0: never).

All requests to Kubernetes and to Slurm but the watches go through one method, where a hook counts them; those to sites
go through one method for NATS and one for interLink. A second number kills the process that many seconds after its
first request (0: never), wherever its threads are then. With ``writes``, only requests that change pods, jobs or places
count.

The file ``killed.calls`` beside the configuration gets one line for each cancellation that Slurm has accepted, and one
for each Binding before it is sent: ``cancel JOB`` and ``bind JOB POD``, in the order of the clock of the machine. Each
write that counts gets a line, too: ``write METHOD PATH``.
"""

import itertools
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

from bridge import logs, names
from bridge.apps.hub.hub import Hub
from bridge.config import hub
from bridge.http.curl_client import CurlClient
from bridge.pools.interlink.interlink_transport import PluginTransport
from bridge.protocol.nats.nats_link import Link

_SITE_WRITE = re.compile(r"\.(submit|grant|cancel)\.|^/(create|delete)$")


def changes(method, path):
    """Return whether a request changes a pod or a job; a subject of NATS and a path of interLink count as paths."""
    if method == "":
        return bool(_SITE_WRITE.search(path))
    return method != "GET" and bool(re.search(r"/pods/|/job/", path))


class Killer:
    """Counts requests, and kills the process after one of them."""

    def __init__(self, limit, seconds, only_writes, calls_file):
        self._limit, self._seconds, self._only_writes, self._file = limit, seconds, only_writes, calls_file
        self._calls, self._first = itertools.count(1), itertools.count(1)

    def note(self, *words):
        with self._file.open("a") as file:  # one write of a short line: processes do not mix theirs
            file.write(" ".join(map(str, words)) + "\n")

    def answered(self, method, path):
        if next(self._first) == 1 and self._seconds:
            timer = threading.Timer(self._seconds, self._kill, [f"after {self._seconds:.3f} s"])
            timer.daemon = True
            timer.start()
        if self._only_writes and not changes(method, path):
            return
        if self._only_writes:
            self.note("write", method or "-", path)
        if next(self._calls) == self._limit:
            self._kill(f"after {method} {path}")

    @staticmethod
    def _kill(why):
        sys.stderr.write(f"killed {why}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def hook(killer):
    """Let the clients of Kubernetes, Slurm and sites report their requests."""
    call, nats, interlink = CurlClient.call, Link.request, PluginTransport.request

    def counted(client, method, path, headers, body, *args):
        if method == "POST" and path.endswith("/binding"):
            sent = json.loads(body)["metadata"]
            killer.note("bind", sent["annotations"].get(names.JOB_ID_ANNOTATION, 0), sent["name"])
        answer = call(client, method, path, headers, body, *args)
        if method == "DELETE" and answer.status == 200 and (job := re.search(r"/job/(\d+)$", path)):
            killer.note("cancel", job[1])
        killer.answered(method, path)
        return answer

    def sent(link, subject, *args):
        answer = nats(link, subject, *args)
        killer.answered("", subject)
        return answer

    def requested(transport, method, path, *args, **options):
        answer = interlink(transport, method, path, *args, **options)
        killer.answered("", path)
        return answer

    CurlClient.call, Link.request, PluginTransport.request = counted, sent, requested


if __name__ == "__main__":
    limit, seconds, counted_requests, config, *parts = sys.argv[1:]
    hook(Killer(int(limit), float(seconds), counted_requests == "writes", Path(config).with_suffix(".calls")))
    settings = hub.load(Path(config))
    logs.setup(settings.logging.level, "text")
    sys.exit(Hub(settings, parts, None, None).run())
