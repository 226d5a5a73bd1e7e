# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Input and terminal of containers with stdin or tty (CONSOLE; TERMINAL: tty, ONCE: stdinOnce). CONSOLE_PROGRAM is
# bridge/script/console.py. Scripts of other pods do not contain this part.

# open_console I: start the program that holds input and output of the container; OUTPUT is its log.
open_console() {
    local place=run/${NAME[$1]}
    rm -f "$place".{console,tty,in,out}
    find_python && mkfifo -m 600 "$place.in" "$place.out" || return 0
    (
        [[ $WAKE ]] && exec {WAKE}>&-
        # it ends after the container, which may say something about its end
        trap '' TERM INT HUP
        trap - EXIT
        exec </dev/null >&"$OUTPUT" 2>&1 {OUTPUT}>&-
        exec "$PYTHON" -I -S -c "$CONSOLE_PROGRAM" keep "$place" "${TERMINAL[$1]}" "${ONCE[$1]}"
    ) &
    disown "$!"
}

# use_console I: SESSION, which stands before the container's program, also gives it the input and output of the console.
use_console() {
    find_python || cannot "${NAME[$1]}" 128 'ContainerCannotRun permanent' 'stdin and tty need python3 on this machine'
    SESSION=("$PYTHON" -I -S -c "$CONSOLE_PROGRAM" start "$PWD/run/${NAME[$1]}" "${TERMINAL[$1]}")
}

# join_console I SENDS: what job.sh does for kubectl attach.
join_console() {
    find_python || cannot_enter 'attach needs python3 on the machine of the pod'
    exec "$PYTHON" -I -S -c "$CONSOLE_PROGRAM" attach "run/${NAME[$1]}" "$2"
}

# console NAME tty|'' FILE SENDS: what job.sh does for kubectl attach, as session for kubectl exec.
console() { beside join_console "$@"; }
