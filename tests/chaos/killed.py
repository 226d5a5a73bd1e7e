"""podbridge's scheduler, controllers or both in a process that kills itself right after its N-th request (0: never).

All requests to Kubernetes and to Slurm but the watches go through one method, where a hook counts them. A second number
kills the process that many seconds after its first request (0: never), wherever its threads are then.

The file ``killed.calls`` beside the configuration gets one line for each cancellation that Slurm has accepted, and one
for each Binding before it is sent: ``cancel JOB`` and ``bind JOB POD``, in the order of the clock of the machine.
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
from bridge.http import curl_client


def kill_after(limit, seconds, calls_file):
    calls = itertools.count(1)
    original = curl_client.CurlClient.call

    def kill(why):
        sys.stderr.write(f"killed {why}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def note(*words):
        with calls_file.open("a") as file:  # one write of a short line: processes do not mix theirs
            file.write(" ".join(map(str, words)) + "\n")

    def counted(client, method, path, headers, body, *args):
        if method == "POST" and path.endswith("/binding"):
            sent = json.loads(body)["metadata"]
            note("bind", sent["annotations"].get(names.JOB_ID_ANNOTATION, 0), sent["name"])
        answer = original(client, method, path, headers, body, *args)
        if method == "DELETE" and answer.status == 200 and (job := re.search(r"/job/(\d+)$", path)):
            note("cancel", job[1])
        number = next(calls)
        if number == limit:
            kill(f"after {method} {path}")
        if number == 1 and seconds:
            timer = threading.Timer(seconds, kill, [f"after {seconds:.3f} s"])
            timer.daemon = True
            timer.start()
        return answer

    curl_client.CurlClient.call = counted


if __name__ == "__main__":
    kill_after(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]).with_suffix(".calls"))
    settings = hub.load(Path(sys.argv[3]))
    logs.setup(settings.logging.level, "text")
    sys.exit(Hub(settings, sys.argv[4:], None, None).run())
