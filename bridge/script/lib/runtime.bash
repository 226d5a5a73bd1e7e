# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Defaults for runtimes: the container's processes are in the session of the runtime's process, which forwards signals
# and exit codes.

RUNTIME_SECRETS=(run/docker)

runtime_signal() {
    if [[ $2 == KILL ]]; then
        family "${PID[$1]}"
        kill -KILL "${FAMILY[@]}" 2>/dev/null
        kill_session "${PID[$1]}"
    fi
    kill -s "$2" -- "${PID[$1]}" 2>/dev/null
}

runtime_pid() { RESULT=${PID[$1]}; }
runtime_own() { :; }
runtime_code() { RESULT=$2; }
runtime_oom() { cgroup_oom; }
runtime_remove() { rm -rf -- "$1"; }
runtime_end() { :; }

# read_only_mount PLACE: keeps the flags of the mount; a user namespace can't remove those that were set outside it.
read_only_mount() {
    local flags
    flags=$(findmnt -n -o VFS-OPTIONS -- "$1" | tail -n 1)
    flags=,$flags,
    mount -o "remount,bind,ro${flags//,rw,/,}" "$1" 2>/dev/null || mount -o remount,bind,ro "$1"
}
