# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Commands of kubectl exec at batch systems that start no program beside a running job: the script starts them. Each is a file
# of control/sessions; its input and output are connections to the machine of the submitter.

# The driver of the batch system sets it in the environment of the job.
CHANNEL=${PODBRIDGE_CHANNEL-}
unset -v PODBRIDGE_CHANNEL

watch_channel() {
    local name
    [[ $CHANNEL ]] || return
    list control/sessions
    for name in $NAMES; do
        [[ $name =~ ^[0-9a-f]+$ ]] && mv "control/sessions/$name" "run/$name" && in_background serve_session "$name"
    done
}

# serve_session TOKEN: the lines of its file are hosts, port, and for a terminal rows and columns; then the words in Base64, each
# with a null byte at its end.
serve_session() {
    local token=$1 file=run/terminal.$1 hosts port size host word words=() control='' in out err child
    {
        read -r hosts && read -r port && read -r size
        while IFS= read -r -d '' word; do
            words+=("$word")
        done < <(base64 -d)
    } <"run/$token"
    rm -f "run/$token"
    for host in $hosts; do
        { exec {control}<>"/dev/tcp/$host/$port"; } 2>/dev/null && break
    done
    [[ $control ]] && exec {in}<>"/dev/tcp/$host/$port" {out}<>"/dev/tcp/$host/$port" {err}<>"/dev/tcp/$host/$port" || return
    printf '%s control\n' "$token" >&"$control"
    printf '%s input\n' "$token" >&"$in"
    printf '%s output\n' "$token" >&"$out"
    printf '%s error\n' "$token" >&"$err"
    (
        exec <&"$in" >&"$out" 2>&"$err" {in}<&- {out}<&- {err}<&- {control}<&-
        [[ $size ]] || exec "${words[@]}"
        printf -v word ' %q' "${words[@]}"
        SHELL=$BASH exec script -qefc "stty rows ${size% *} cols ${size#* }; echo \$\$ >$file; exec$word" /dev/null
    ) &
    child=$!
    exec {in}<&- {out}<&- {err}<&-
    end_with_client "$control" "$file" &
    wait "$child"
    size=$?
    kill "$!"
    rm -f "$file"
    printf 'exit %s\n' "$size" >&"$control"
}

# end_with_client CONTROL FILE: set the size of the terminal as the client says; end the session once the client is gone. FILE has
# the first process of the terminal, which has a session of its own.
end_with_client() {
    local size
    while read -r -u "$1" size; do
        [[ $size =~ ^([0-9]+)\ ([0-9]+)$ ]] || continue
        until [[ -s $2 ]]; do
            sleep 0.1
        done
        stty -F "/dev/$(ps -o tty= -p "$(<"$2")")" rows "${BASH_REMATCH[1]}" cols "${BASH_REMATCH[2]}"
    done
    trap '' TERM
    kill -TERM 0
    sleep 2
    end_terminal "$2"
    kill -KILL 0
}

# end_terminal FILE...: kill the processes of terminals.
end_terminal() {
    local file
    for file; do
        [[ ! -s $file ]] || kill_session "$(<"$file")"
        rm -f "$file"
    done
}
