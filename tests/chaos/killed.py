"""podbridge's scheduler, controllers or both in a process that kills itself right after its N-th request (0: never).

All requests to Kubernetes and to Slurm but the watches go through one method, where a hook counts them. A second number
kills the process that many seconds after its first request (0: never), wherever its threads are then.
"""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path

from bridge import config, curl_client, logs
from bridge.cli.hub import Hub


def kill_after(limit, seconds):
    calls = itertools.count(1)
    original = curl_client.CurlClient.call

    def kill(why):
        sys.stderr.write(f"killed {why}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(client, method, path, *args):
        answer = original(client, method, path, *args)
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
    kill_after(int(sys.argv[1]), float(sys.argv[2]))
    settings = config.load(Path(sys.argv[3]))
    logs.setup(settings.logging.level, "text")
    sys.exit(Hub(settings, sys.argv[4:], None, None).run())
