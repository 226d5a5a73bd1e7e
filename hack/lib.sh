# Sourced by the scripts beside it: the checkout, the cache, and a Python environment with all that the lock file names.
# shellcheck shell=bash

set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PODBRIDGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/podbridge}
# one for each state of the lock file: checkouts of different versions may share the cache, also at the same time
venv=$cache/venv-$(sha256sum "$checkout/requirements-dev.lock" | cut -c1-12)
python=$venv/bin/python
export PYTHONPATH="$checkout/hack:$checkout"
# Images of containers often set it. Without bytecode, each process of podbridge compiles all modules (1 CPU second), and
# each process of pytest all tests (15 CPU seconds).
unset PYTHONDONTWRITEBYTECODE

say() {
    printf '%s\n' "$*" >&2
}

# Makes $venv from requirements-dev.lock. The project itself is not installed there: it is run from the checkout, so
# several checkouts may share the environment.
ensure_venv() {
    mkdir -p "$cache"
    (
        flock 9
        if [[ -e $venv/.complete ]]; then
            exit 0
        fi
        if ! command -v python3.11 >/dev/null; then
            say "error: Python 3.11 is needed (python3.11 is not on PATH)"
            exit 1
        fi
        if ! python3.11 -c 'import ensurepip, venv' 2>/dev/null; then
            say "installing Python's venv module by apt"
            apt-get update -qq >&2
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3.11-venv >&2
        fi
        say "making a Python environment in $venv from requirements-dev.lock (about half a minute, once)"
        rm -rf "$venv"
        python3.11 -m venv "$venv"
        PYTHONPATH='' "$python" -m pip install --quiet --disable-pip-version-check --require-hashes \
            -r "$checkout/requirements-dev.lock"
        touch "$venv/.complete"
    ) 9>"$cache/.venv.lock"
}

# Runs a module of hack/.
hack() {
    ensure_venv
    exec "$python" -m "$@"
}
