"""podbridge's scheduler and controllers in a process that kills itself right after its N-th request.

All requests to Kubernetes and to Slurm but the watches go through one method, where a hook counts them. N = 0: never.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

from bridge import config, curl_client, logs
from bridge.cli.hub import Hub


def kill_after(limit):
    calls = itertools.count(1)
    original = curl_client.CurlClient.call

    def counted(client, method, path, *args):
        answer = original(client, method, path, *args)
        if next(calls) == limit:
            sys.stderr.write(f"killed after {method} {path}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    curl_client.CurlClient.call = counted


if __name__ == "__main__":
    if int(sys.argv[1]):
        kill_after(int(sys.argv[1]))
    settings = config.load(Path(sys.argv[2]))
    logs.setup(settings.logging.level, "text")
    sys.exit(Hub(settings, ("scheduler", "controllers"), None, None).run())
