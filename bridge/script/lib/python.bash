# shellcheck shell=bash
# Scripts contain this part if they run programs in Python.

# find_python: PYTHON is a Python of this machine.
find_python() {
    for PYTHON in python3 /usr/libexec/platform-python; do
        ! PYTHON=$(type -P -- "$PYTHON") || return 0
    done
    return 1
}
