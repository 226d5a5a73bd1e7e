# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Defaults for runtimes: the container's processes are in the session of the runtime's process, which forwards signals
# and exit codes.

# what it stores that must not remain
RUNTIME_SECRETS=(run/docker)

runtime_signal() {
    if [[ $2 == KILL ]]; then
        family "${PID[$1]}"
        kill -KILL "${FAMILY[@]}" 2>/dev/null
        kill_session "${PID[$1]}"
    fi
    kill -s "$2" -- "${PID[$1]}" 2>/dev/null
}

# runtime_user I: whether the runtime can give the container the user and the group that its pod asks for (RUN_AS is
# <user>:<group>); else FIELD is the field, and PROBLEM is what is wrong with its value.
runtime_user() { :; }
# Whether a container without runAsUser has the user of its image, and not that of the site.
IMAGE_USER=''

# own_user I ROOT: runtime_user of a runtime that gives the user of this site, or the user ROOT (empty, or 0) with any group.
own_user() {
    local user=${RUN_AS[$1]%%:*} group=${RUN_AS[$1]#*:}
    [[ ! $user || $user != "$2" ]] || return 0
    if [[ $user && $user != "$UID" ]]; then
        FIELD=runAsUser PROBLEM="$user is not allowed; allowed: $UID, the user of this site${2:+, or $2}"
        return 1
    elif [[ $group && $group != "${GROUPS[0]}" ]]; then
        FIELD=runAsGroup PROBLEM="$group is not allowed; allowed: ${GROUPS[0]}, the group of this site"
        return 1
    fi
}

# runtime_session I WORD...: a command of kubectl exec; TTY is set if its input and output are a terminal.
runtime_session() { runtime_exec "$@"; }
runtime_pid() { RESULT=${PID[$1]}; }
runtime_own() { :; }
runtime_code() { RESULT=$2; }
runtime_oom() { cgroup_oom; }
runtime_remove() { rm -rf -- "$1"; }
runtime_end() { :; }

# join PID WORD...: replace this process by a command in the namespaces of a process, with its variables and directory.
join() {
    local pid=$1 kind words=(nsenter --target "$1") setter=()
    local -A option=([user]=user [mnt]=mount [pid]=pid [ipc]=ipc [uts]=uts [net]=net)
    for kind in "${!option[@]}"; do
        [[ /proc/$pid/ns/$kind -ef /proc/self/ns/$kind ]] || words+=("--${option[$kind]}")
    done
    [[ " ${words[*]} " != *' --user '* ]] || words+=(--preserve-credentials)
    if grep -q '^NoNewPrivs:[[:space:]]*1' "/proc/$pid/status" 2>/dev/null; then
        setter=(setpriv --no-new-privs --)
    fi
    if find_setter; then
        setter+=("${SETTER[@]}" "/proc/$pid/environ" '^TERM$')
    else
        take_variables "$pid" # those that a shell can assign
    fi
    exec "${setter[@]}" "$(type -P nsenter)" "${words[@]:1}" --wd -- "${@:2}"
}

# take_variables PID: export the variables of a process.
take_variables() {
    local name pair
    while IFS= read -r -d '' pair; do
        name=${pair%%=*}
        is_foreign "$name" || is_special "$name" || export "$name=${pair#*=}"
    done <"/proc/$1/environ"
} 2>/dev/null

# read_only_mount PLACE [FLAGS]: keeps the flags of the mount; a user namespace can't remove those that were set outside it.
read_only_mount() {
    local flags=${2-}
    [[ $flags ]] || flags=$(findmnt -n -o VFS-OPTIONS -- "$1" | tail -n 1)
    flags=,$flags,
    mount -o "remount,bind,ro${flags//,rw,/,}" "$1" 2>/dev/null || mount -o remount,bind,ro "$1"
}
