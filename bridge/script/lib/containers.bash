# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# One container: start, end, restart. Containers are indices of arrays, which have the state of each.

# The state before the start.
set_up_containers() {
    local i
    for i in "${!NAME[@]}"; do
        STATE[i]=waiting REASON[i]=PodInitializing BEGAN[i]=null ENDED[i]=null LAST[i]=null CODE[i]=''
        RESTARTS[i]=0 UP[i]=false READY[i]=false DIRTY[i]=1 PID[i]='' STEP[i]='' OVER[i]='' BACKOFF[i]=0 SAYS[i]=''
    done
}

# begin I: start the container's process. It is "running" when the runtime has created run/<name>.go.
begin() {
    local i=$1 name
    name=${NAME[i]}
    remove "run/$name."{go,why,progress,message}
    new_log "$i"
    # the container may have another user; the job's directory is private
    umask 0
    : >"run/$name.message"
    umask 077
    if [[ ${ENDED[i]} != null ]]; then
        LAST[i]=${ENDED[i]} ENDED[i]=null
        mv -f "termination/$name" "termination/$name.previous"
        RESTARTS[i]=$((RESTARTS[i] + 1))
    fi
    STATE[i]=waiting REASON[i]=ContainerCreating BEGAN[i]=null UP[i]=false READY[i]=false CODE[i]=''
    STEP[i]=creating KILL_AT[i]='' KILLED[i]='' WHY_KILLED[i]='' HOOK[i]='' NEXT[i]='' DIRTY[i]=1
    FLUSH_AT=$((NOW + BEGIN_TIME))
    unset "BEGAN_AT[i]" # a start that fails is no long run
    oom_count
    OOM_BEFORE=$RESULT
    collect "$i"
    [[ ! ${CONSOLE[i]-} ]] || open_console "$i"
    SESSION=(setsid)
    (
        [[ $WAKE ]] && exec {WAKE}>&-
        trap - TERM INT HUP EXIT
        exec </dev/null >&"$OUTPUT" 2>&1 {OUTPUT}>&-
        started_at "$BASHPID"
        printf '%d %d %s\n' "$BASHPID" "$RESULT" "$BOOT" >"run/$name.pid"
        fits_or_cannot "$i"
        [[ ! ${CONSOLE[i]-} ]] || use_console "$i"
        runtime_start "$i"
    ) &
    PID[i]=$!
    exec {OUTPUT}>&-
}

# go NAME: a runtime calls it just before it executes the container's process.
go() {
    : >"run/$1.go"
    [[ -p run/waker ]] && printf . 1<>run/waker
} 2>/dev/null

# cannot NAME CODE REASON MESSAGE: a runtime calls it if it can't start the container; ends this process. With "REASON
# permanent", no restart on this machine could start it, and the pod fails: else it would hold its resources for nothing.
cannot() {
    printf '%s\n%s\n' "$3" "$4" >"run/$1.why"
    printf '%s\n' "$4" >&2
    exit "$2"
}

# fits_or_cannot I: Linux starts no program with a longer argument or variable than 32 pages, or with more than ARG_MAX bytes
# of both; a page is left for what a runtime adds.
fits_or_cannot() {
    local k size sum=4096 most=$((PAGE * 32768 - 1)) all
    command_of "$1"
    variables_of "$1"
    for k in "${!COMMAND[@]}"; do
        size=${#COMMAND[k]}
        ((size <= most)) || cannot "${NAME[$1]}" 128 'ContainerCannotRun permanent' \
            "argument $k has $size bytes; this machine starts no program with an argument of more than $most"
        sum=$((sum + size + 9))
    done
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        size=$((${#VARIABLES[k]} + 1 + ${#VARIABLES[k + 1]}))
        ((size <= most)) || cannot "${NAME[$1]}" 128 'ContainerCannotRun permanent' \
            "the variable ${VARIABLES[k]} has $size bytes; this machine starts no program with a variable of more than $most"
        sum=$((sum + size + 9))
    done
    ((sum > most)) || return 0
    all=$(getconf ARG_MAX) || return 0
    ((sum <= all)) || cannot "${NAME[$1]}" 128 'ContainerCannotRun permanent' \
        "arguments and variables have $sum bytes; this machine starts no program with more than $all"
}

# The container's process has started.
has_begun() {
    local i=$1
    STATE[i]=running REASON[i]='' SAYS[i]='' BEGAN[i]=$TIME STEP[i]=running DIRTY[i]=1
    BEGAN_AT[i]=$NOW FLUSH_AT=0
    if declare -F "post_start_$i" >/dev/null; then
        in_background with_output "run/${NAME[i]}.hook" "post_start_$i"
        HOOK[i]=$!
    fi
    set_up_probes "$i"
}

# take_progress I: copy to the status what a container waits for before it starts.
take_progress() {
    local text
    read -r text <"run/${NAME[$1]}.progress"
    rm -f "run/${NAME[$1]}.progress"
    text=${text//[^A-Za-z0-9 ,_.\/:@+#%=~-]/}
    note "${NAME[$1]}: $text"
    SAYS[$1]=${text:0:1000} DIRTY[$1]=1
} 2>/dev/null

# in_background WORDS...: run a function in its own process group, so that end_group can end it.
in_background() {
    set -m
    (
        [[ $WAKE ]] && exec {WAKE}>&-
        trap - TERM INT HUP EXIT
        "$@"
    ) </dev/null >/dev/null 2>&1 &
    set +m
}

# with_output FILE WORDS...: run a function; FILE gets the beginning of its output, at most 4 kB. What it
# has started in the background may keep the pipe open, and is not waited for.
with_output() {
    local file=$1 reader code i
    shift
    {
        # dd writes at once what it has read, which counts if it is killed
        exec 3> >(dd bs=256 count=16 >"$file" && exec cat >/dev/null)
        reader=$!
        ("$@") >&3 2>&1 3>&-
        code=$?
        exec 3>&-
        for ((i = 0; i < 10; i++)); do
            kill -0 "$reader" || break
            sleep 0.02
        done
    } 2>/dev/null
    return "$code"
}

# take_output FILE: RESULT is what with_output has written there, with ": " before it, or nothing.
take_output() {
    RESULT=''
    [[ -s $1 ]] || return 0
    read -r -d '' -n 1024 RESULT <"$1"
    rm -f "$1"
    RESULT=${RESULT:+: $RESULT}
} 2>/dev/null

# end_group PID: end what in_background started.
end_group() {
    kill -KILL -- "-$1"
} 2>/dev/null

end_hook() {
    [[ ! ${HOOK[$1]} ]] || end_group "${HOOK[$1]}"
    HOOK[$1]=''
}

# Check one container: has it started or ended, must it be killed or restarted?
tend() {
    local i=$1
    case ${STEP[i]} in
    '' | over) return ;;
    backoff)
        ((NOW < NEXT[i])) || begin "$i"
        return
        ;;
    esac
    if [[ ${STEP[i]} == creating && -e run/${NAME[i]}.go ]]; then
        has_begun "$i"
    elif [[ ${STEP[i]} == creating && -s run/${NAME[i]}.progress ]]; then
        take_progress "$i"
    fi
    if ! kill -0 "${PID[i]}" 2>/dev/null; then
        reap "$i"
        return
    fi
    if [[ ${HOOK[i]} ]] && ! kill -0 "${HOOK[i]}" 2>/dev/null; then
        hook_over "$i"
    fi
    if [[ ${KILL_AT[i]} ]] && ((NOW >= KILL_AT[i])); then
        kill_now "$i"
    fi
    [[ ${STEP[i]} != running ]] || probe_all "$i"
}

# ask_to_end I GRACE [WHY TEXT]: preStop, TERM, and KILL after GRACE centiseconds. A second call can only reduce the time.
ask_to_end() {
    local i=$1 at=$((NOW + $2))
    case ${STEP[i]} in
    '')
        OVER[i]=1
        return
        ;;
    over) return ;;
    backoff)
        finish_waiting "$i"
        return
        ;;
    esac
    if [[ ! ${WHY_KILLED[i]} && ! ${KILL_AT[i]} ]]; then
        WHY_KILLED[i]=${3-}
        happened "$i" Killing "${4:-Stopping container ${NAME[i]}}"
    fi
    if [[ ! ${KILL_AT[i]} ]] || ((at < KILL_AT[i])); then
        KILL_AT[i]=$at
    fi
    case ${STEP[i]} in
    stopping | terminating) return ;;
    esac
    stop_probes "$i"
    if [[ ${READY[i]} == true ]]; then
        READY[i]=false DIRTY[i]=1
    fi
    end_hook "$i"
    if [[ ${STEP[i]} == running ]] && declare -F "pre_stop_$i" >/dev/null && (($2 > 0)); then
        STEP[i]=stopping
        in_background with_output "run/${NAME[i]}.hook" "pre_stop_$i"
        HOOK[i]=$!
    else
        terminate "$i"
    fi
}

terminate() {
    STEP[$1]=terminating
    runtime_signal "$1" TERM
}

kill_now() {
    local i=$1
    end_hook "$i"
    if [[ ${STEP[i]} == stopping ]]; then
        # preStop took all the time: two seconds for the process itself, as a kubelet gives
        KILL_AT[i]=$((NOW + 200))
        terminate "$i"
        return
    fi
    KILL_AT[i]=$((NOW + 500)) KILLED[i]=1
    runtime_signal "$i" KILL
}

# A hook has ended: after postStart the container is started, or killed; after preStop TERM is sent.
hook_over() {
    local i=$1 code
    wait "${HOOK[i]}"
    code=$?
    HOOK[i]=''
    take_output "run/${NAME[i]}.hook"
    if [[ ${STEP[i]} == stopping ]]; then
        ((code == 0)) || happened "$i" FailedPreStopHook "PreStopHook failed (exit code $code)$RESULT"
        ((KILL_AT[i] < NOW + 200)) && KILL_AT[i]=$((NOW + 200))
        terminate "$i"
    elif ((code != 0)); then
        note "${NAME[i]}: postStart failed ($code)"
        happened "$i" FailedPostStartHook "PostStartHook failed (exit code $code)$RESULT"
        ask_to_end "$i" "$GRACE" PostStartHookError "Container ${NAME[i]} failed its postStart hook"
    fi
}

# The container's process has ended: record how, and decide whether it restarts.
reap() {
    local i=$1 code name signal=0 reason permanent=''
    name=${NAME[i]}
    wait "${PID[i]}"
    code=$?
    kill_session "${PID[i]}"
    end_collector "$i"
    runtime_code "$i" "$code"
    code=$RESULT
    runtime_clean "$i"
    PID[i]=''
    : >"run/$name.pid"
    stop_probes "$i"
    end_hook "$i"
    if ((code > 128 && code <= 192)); then
        signal=$((code - 128))
    fi
    reason=Error
    ((code == 0)) && reason=Completed
    if [[ -s run/$name.why ]]; then
        read -r reason permanent <"run/$name.why"
        safe "$reason"
        reason=$RESULT
    elif [[ ${WHY_KILLED[i]} == OOMKilled ]]; then
        reason=OOMKilled code=137 signal=9
    elif ((signal == 9)) && [[ ! ${KILLED[i]} ]] && runtime_oom "$i"; then
        reason=OOMKilled
    fi
    [[ ${STATE[i]} == running ]] || BEGAN[i]=$TIME
    ENDED[i]="{\"exitCode\":$code,\"signal\":$signal,\"reason\":\"$reason\",\"startedAt\":${BEGAN[i]},\"finishedAt\":$TIME}"
    CODE[i]=$code
    close_log "$i"
    keep_message "$i"
    STATE[i]=terminated REASON[i]=$reason SAYS[i]='' UP[i]=false READY[i]=false DIRTY[i]=1 FLUSH_AT=0
    if [[ $permanent && ! $STOPPING ]]; then
        STEP[i]=over OVER[i]=1
        fail_pod "$reason" "container $name: $(tail -n +2 "run/$name.why" | head -c 4096)"
    elif begins_again "$i"; then
        back_off "$i"
    else
        STEP[i]=over OVER[i]=1
    fi
}

begins_again() {
    local i=$1
    [[ $STOPPING ]] && return 1
    [[ ${KIND[i]} == sidecar && $STAGE != last ]] && return 0
    case ${KIND[i]}.$RESTART_POLICY in
    main.Always) return 0 ;;
    # a kubelet restarts after a failed liveness or startup probe whatever the exit code is
    main.OnFailure) [[ ${CODE[i]} != 0 || ${WHY_KILLED[i]} == Unhealthy ]] ;;
    init.Always | init.OnFailure) ((CODE[i] != 0)) ;;
    *) return 1 ;;
    esac
}

# The first restart is immediate, then after 10 s, 20 s and so on up to 5 min; a run of 10 min resets the delay.
back_off() {
    local i=$1 wait
    wait=${BACKOFF[i]}
    if ((NOW - ${BEGAN_AT[i]:-NOW} >= 60000)); then
        wait=0
    fi
    if ((wait == 0)); then
        BACKOFF[i]=$FIRST_BACKOFF
        begin "$i"
        return
    fi
    BACKOFF[i]=$((wait * 2 > 30000 ? 30000 : wait * 2))
    STATE[i]=waiting REASON[i]=CrashLoopBackOff LAST[i]=${ENDED[i]} NEXT[i]=$((NOW + wait)) STEP[i]=backoff DIRTY[i]=1
}

# A container that waits for its restart will not restart.
finish_waiting() {
    local i=$1
    STATE[i]=terminated STEP[i]=over OVER[i]=1 DIRTY[i]=1 REASON[i]=Error
    ((CODE[i] == 0)) && REASON[i]=Completed
}

# kill_session PID: kill the processes that the container's process left.
kill_session() {
    local left
    left=$(exec ps -o pid= -s "$1" 2>/dev/null)
    # shellcheck disable=SC2086
    [[ $left ]] && kill -KILL $left 2>/dev/null
}

# end_now I: kill a container whose end is not recorded.
end_now() {
    runtime_signal "$1" KILL
    kill_session "${PID[$1]}"
    runtime_clean "$1"
}

# keep_message I: the first 4096 bytes of the termination message, or the end of the log.
keep_message() {
    local i=$1 name
    name=${NAME[i]}
    if [[ -s run/$name.message ]]; then
        head -c 4096 "run/$name.message" >"termination/.new"
    elif [[ -s run/$name.why ]]; then
        tail -n +2 "run/$name.why" | head -c 4096 >"termination/.new"
    elif [[ ${FALLBACK[i]} && ${CODE[i]} != 0 ]]; then
        end_of_log "$i" >"termination/.new"
    else
        : >"termination/$name"
        return
    fi
    mv -f termination/.new "termination/$name"
}
