# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# What runs beside a container of a running pod for kubectl: on its machine, and not in the script of the pod.

# runs_here I: sets PID to the recorded process of a container; whether it runs on this machine.
runs_here() {
    local pid='' began boot
    { read -r pid began boot <"run/${NAME[$1]}.pid"; } 2>/dev/null
    read -r BOOT </proc/sys/kernel/random/boot_id
    started_at "${pid:-none}"
    PID[$1]=$pid
    [[ $RESULT && $RESULT == "$began" && $boot == "$BOOT" ]]
}

# cannot_enter TEXT
cannot_enter() {
    printf '%s\n' "$1" >&2
    exit 126
}

# session NAME tty|'' FILE WORD...: what job.sh does for kubectl exec.
session() { beside runtime_session "$@"; }

# beside HOW NAME tty|'' FILE WORD...: run a function about a container on its machine, while it runs. FILE, if any, gets the
# exit code.
beside() {
    local i how=$1 name=$2 file=$4 ender code copies=()
    [[ ! $3 ]] || TTY=1
    shift 4
    for i in "${!NAME[@]}"; do
        [[ ${NAME[i]} != "$name" ]] || break
    done
    { [[ ${NAME[i]} == "$name" ]] && runs_here "$i"; } || cannot_enter "container $name does not run on this machine"
    runtime_check >/dev/null || cannot_enter "the container runtime is not usable here: $PROBLEM"
    find_address
    [[ ! $TTY ]] || export TERM=xterm
    umask 022
    if [[ ! $file ]]; then
        "$how" "$i" "$@"
        exit
    fi
    ender=$(
        end_with "$file" </dev/null >/dev/null 2>&1 &
        echo "$!"
    )
    trap ':' INT QUIT
    if [[ ! $TTY && -t 1 ]]; then
        # srun --unbuffered gives the step terminals, to which tar, for one, writes nothing
        mkfifo "$file.out" "$file.error"
        cat "$file.out" &
        copies+=("$!")
        cat "$file.error" >&2 &
        copies+=("$!")
        exec >"$file.out" 2>"$file.error"
        rm -f "$file.out" "$file.error"
    fi
    (
        trap - INT QUIT
        "$how" "$i" "$@"
    )
    code=$?
    if ((${#copies[@]})); then
        exec >/dev/null 2>&1
        # a process that the command has left behind may keep its output open
        { sleep 5 && kill "${copies[@]}"; } &
        wait "${copies[@]}"
        kill "$!"
    fi
    printf '%s\n' "$code" >"$file"
    kill "$ender"
    exit 0
}

# end_with FILE: end this session once FILE.over exists, since who started it is gone, perhaps before it began; or once its
# first process is gone. It is no child of that process: Slurm without cgroups kills the descendants of a step one by one, and
# misses a command that has just lost its parent.
end_with() {
    until [[ ! -d /proc/$$ ]] || { list "${1%/*}" && [[ $NAMES == *" ${1##*/}.over "* ]]; }; do
        sleep 1
    done
    trap '' TERM
    kill -TERM 0
    sleep 2
    kill -KILL 0
}

# connector CODE ALONE PYTHON: what job.sh does for kubectl port-forward: it becomes the Python program CODE. Its arguments
# are ALONE, and for each container the recorded process and, if it runs on this machine, the container's process. PYTHON:
# that of the submitter, which this machine may have, too.
connector() {
    local i program words=()
    runtime_check >/dev/null || cannot_enter "the container runtime is not usable here: $PROBLEM"
    for i in "${!NAME[@]}"; do
        if runs_here "$i"; then runtime_pid "$i"; else RESULT=''; fi
        [[ ! ${PID[i]} ]] || words+=("${PID[i]}:$RESULT")
    done
    for program in python3 /usr/libexec/platform-python "$3"; do
        ! type -P -- "$program" >/dev/null || exec "$program" -I -S -c "$1" "$2" "${words[@]}"
    done
    cannot_enter 'port-forward needs python3 on the machine of the pod'
}
