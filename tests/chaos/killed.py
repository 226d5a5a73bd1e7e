"""podbridge's scheduler and controllers in a process that kills itself right after its N-th request.

All requests to Kubernetes and to Slurm go through urllib3, where one hook counts them. N = 0: never.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import urllib3.connectionpool

from bridge import config, logs
from bridge.cli.hub import Hub


def kill_after(limit):
    calls = itertools.count(1)
    original = urllib3.connectionpool.HTTPConnectionPool.urlopen

    def counted(pool, method, url, *args, **kwargs):
        response = original(pool, method, url, *args, **kwargs)
        if next(calls) == limit:
            sys.stderr.write(f"killed after {method} {url}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    urllib3.connectionpool.HTTPConnectionPool.urlopen = counted


if __name__ == "__main__":
    if int(sys.argv[1]):
        kill_after(int(sys.argv[1]))
    settings = config.load(Path(sys.argv[2]))
    logs.setup(settings.logging.level, "text")
    sys.exit(Hub(settings, ("scheduler", "controllers"), None, None).run())
