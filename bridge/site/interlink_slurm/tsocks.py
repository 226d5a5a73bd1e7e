"""``Tsocks``: lines of a job script that connect it to the network through a login node. Pure.

ssh opens a SOCKS proxy to the login node, and the library of tsocks redirects connections of the machine's programs,
such as the pull of an image. Containers have their own libraries and are not redirected.
"""

from __future__ import annotations

import re
import shlex

from bridge.errors import ConfigError

_PATH = re.compile(r"[A-Za-z0-9_./${}+~:@%-]+")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


def header(path: str, login_node: str, source: str) -> str:
    """Return the lines before the job; variables in ``path`` are the job's. Raises :class:`ConfigError`."""
    if not _PATH.fullmatch(path):
        raise ConfigError(f"{source}: TsocksPath: {path!r} is not allowed; allowed: the path of libtsocks.so")
    if not _HOST.fullmatch(login_node):
        raise ConfigError(f"{source}: TsocksLoginNode: {login_node!r} is not allowed; allowed: a host, or user@host")
    return f"""\
TSOCKS_LIBRARY="{path}"
[[ -d $TSOCKS_LIBRARY ]] && TSOCKS_LIBRARY=$TSOCKS_LIBRARY/libtsocks.so
for TSOCKS_PORT in $(shuf -i 10000-65000 -n 50); do
    (: </dev/tcp/127.0.0.1/"$TSOCKS_PORT") 2>/dev/null || break
done
ssh -4 -N -o BatchMode=yes -o ExitOnForwardFailure=yes -D "127.0.0.1:$TSOCKS_PORT" {shlex.quote(login_node)} \\
    </dev/null &
TSOCKS_SSH=$!
printf 'local = 10.0.0.0/255.0.0.0\\nserver = 127.0.0.1\\nserver_port = %s\\n' "$TSOCKS_PORT" >"$PWD/tsocks.conf"
for TSOCKS_TRY in {{1..50}}; do
    (: </dev/tcp/127.0.0.1/"$TSOCKS_PORT") 2>/dev/null && break
    kill -0 "$TSOCKS_SSH" 2>/dev/null || break
    sleep 0.2
done
export TSOCKS_CONF_FILE=$PWD/tsocks.conf LD_PRELOAD=$TSOCKS_LIBRARY
"""


FOOTER = """\
unset LD_PRELOAD
kill "$TSOCKS_SSH" 2>/dev/null
"""
"""Lines at the end of the job."""
