# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The pod: init containers one after the other, then all others, then the end.

declare -a BEGAN_AT
declare -A HOST_PATH HOST_TYPE HOST_FREE
HOST_AREAS=() SCRATCH_HELD='' IGNORE_USERS=''
STOPPING='' CURRENT=0 FORCED='' STOP_BY='' DEADLINE_AT='' REACHER=''
# centiseconds in which most containers begin: the write of a state before that costs as much as a start. The wrapper of a
# group knows how many begin at once.
BEGIN_TIME=${PODBRIDGE_BEGIN_TIME:-100}
unset -v PODBRIDGE_BEGIN_TIME
# the same for the first container, if nothing that may take long comes before
FLUSH_LATER=$BEGIN_TIME
FIRST_BACKOFF=$((${PODBRIDGE_FIRST_BACKOFF_SECONDS:-10} * 100))

main() {
    ((MADE)) && exit 1
    set_up
    in_background stand_guard "$$"
    GUARD=$!
    disown "$GUARD"
    if ! await_grant; then
        give_back
    elif ! prepare; then
        refuse
    fi
    while :; do
        clock
        look_for_stop
        local i
        for i in "${!NAME[@]}"; do
            tend "$i"
        done
        advance
        watch
        flush
        [[ $STAGE == end ]] && break
        # a container that has begun wakes it
        nap 0.$((NOW < FLUSH_AT ? 5 : 2))
    done
    finish
}

set_up() {
    clock
    POD_BEGAN=$TIME
    # what NOW lacks to centiseconds since 1970: a difference of times is as exact as the clock of the machine
    CLOCK_BASE=$((TIME * 100 - NOW))
    read -r BOOT </proc/sys/kernel/random/boot_id
    [[ ! $CHANNEL ]] || mkdir control/sessions
    find_page
    trap 'STOP_BY=${STOP_BY:-signal}' TERM INT
    # not '': containers would inherit that a signal is ignored, but not a trap
    trap ':' HUP
    trap 'died' EXIT
    # the launcher of a group makes those of all its pods; <>: opening the FIFO does not wait for a writer, and reading it never
    # finds an end
    { { [[ -p run/guard ]] || mkfifo run/waker run/guard; } && exec {WAKE}<>run/waker; } 2>/dev/null || WAKE=''
    find_address
    set_up_containers
}

# active: the pod is active from now on.
active() {
    clock
    TICKET=''
    POD_BEGAN=$TIME
    DEADLINE_AT=${DEADLINE:+$((NOW + DEADLINE))}
    FLUSH_AT=$((NOW + FLUSH_LATER))
    pod_state Running
}

# Check the machine before the start; REFUSED is the error.
prepare() {
    REFUSED=FailedMount
    POD_MESSAGE='a volume could not be made'
    make_scratch && write_volumes && host_paths || return 1
    local volumes=(volumes/*/)
    if [[ -d ${volumes[0]} ]]; then
        # 0755 as with a kubelet, because podman's containers may have other users; the job's directory is private
        find volumes -mindepth 1 -type d -exec chmod 755 {} +
    fi
    mount_fuse || return 1
    REFUSED=RuntimeNotFound POD_MESSAGE='the container runtime is not there'
    runtime_check || return 1
    REFUSED=FailedMount POD_MESSAGE='/etc/hosts of the containers could not be written'
    make_hosts || return 1
    REFUSED=NotPossibleAtSite
    [[ ! ${REACHES-} ]] || open_reach || return 1
    users_given || return 1
    REFUSED=ProbeNotPossible
    local way
    for way in "${NEEDS[@]}"; do
        POD_MESSAGE="a probe by $way needs what is not there: curl (for grpc with HTTP/2, or else grpc_health_probe)"
        can_probe "$way" || return 1
    done
    REFUSED=PreExecFailed POD_MESSAGE='the script of the annotation pre-exec failed'
    before_all || return 1
    POD_MESSAGE=''
}

# users_given: check that the runtime gives each container its user, before any of them starts. Where the site says so
# (IGNORE_USERS), what it cannot give has no effect.
users_given() {
    local i user
    for i in "${!NAME[@]}"; do
        until runtime_user "$i"; do
            POD_MESSAGE="container ${NAME[i]}: $FIELD: $PROBLEM"
            [[ $IGNORE_USERS ]] || return 1
            note "$POD_MESSAGE; ignored"
            happened "$i" "${FIELD^}Ignored" "$FIELD: $PROBLEM; the site ignores it (runtime.run_as_user)"
            user=${RUN_AS[i]%%:*}
            if [[ $FIELD == runAsUser ]]; then
                RUN_AS[i]=:${RUN_AS[i]#*:}
            else
                RUN_AS[i]=$user:
            fi
        done
        user=${RUN_AS[i]%%:*}
        if [[ ${NON_ROOT[i]} ]] && ((${user:-${IMAGE_USER:-$UID}} == 0)); then
            POD_MESSAGE="container ${NAME[i]}: runAsNonRoot: the user of the container is root"
            return 1
        fi
    done
}

refuse() {
    local i
    note "refused: $REFUSED"
    POD_REASON=$REFUSED STOPPING=1 FORCED=Failed
    STAGE=end
}

# control/stop contains "<seconds> <Reason>"; a later, shorter time applies too.
look_for_stop() {
    local seconds reason
    if [[ -e control/stop ]]; then
        read -r seconds reason <control/stop
        if [[ $seconds =~ ^[0-9]+ ]]; then
            seconds=${BASH_REMATCH[0]}
            safe "${reason:-Deleted}"
            reason=$RESULT
            if [[ ! $STOPPING ]]; then
                POD_REASON=$reason
                [[ $reason == Deleted ]] || FORCED=Failed
            fi
            stop_pod $((10#$seconds * 100)) "$reason"
        fi
    elif [[ $STOP_BY && ! $STOPPING ]]; then
        POD_REASON=Terminated FORCED=Failed
        stop_pod "$GRACE" Terminated
    elif [[ $DEADLINE_AT && ! $STOPPING ]] && ((NOW >= DEADLINE_AT)); then
        POD_REASON=DeadlineExceeded FORCED=Failed
        POD_MESSAGE='the pod was active for longer than its activeDeadlineSeconds'
        stop_pod "$GRACE" DeadlineExceeded
    fi
}

# fail_pod REASON MESSAGE
fail_pod() {
    json_text "$2"
    POD_REASON=$1 POD_MESSAGE=$RESULT FORCED=Failed
    stop_pod "$GRACE" "$1"
}

# stop_pod GRACE REASON: request the end of every container, sidecars after the others.
stop_pod() {
    local i at=$((NOW + $1))
    if [[ ! $STOPPING ]]; then
        note "stopping: $2"
        STOPPING=1 STOP_AT=$at
        [[ $2 == Evicted ]] && FORCED=Failed
    elif ((at < STOP_AT)); then
        STOP_AT=$at
    else
        return 0
    fi
    for i in "${!NAME[@]}"; do
        [[ ${KIND[i]} == sidecar && $STAGE != last ]] || ask_to_end "$i" $((STOP_AT - NOW))
    done
    [[ $STAGE == init || $STAGE == main ]] && STAGE=stop
}

# Continue with the next step of the pod, if its condition is met.
advance() {
    local i
    case $STAGE in
    init)
        while ((CURRENT < ${#NAME[@]})) && [[ ${KIND[CURRENT]} != main ]]; do
            i=$CURRENT
            if [[ ! ${STEP[i]} ]]; then
                begin "$i"
                return
            elif [[ ${KIND[i]} == sidecar ]]; then
                [[ ${UP[i]} == true ]] || return
            elif [[ ! ${OVER[i]} ]]; then
                return
            elif [[ ${CODE[i]} != 0 ]]; then
                FORCED=Failed STOPPING=1 STOP_AT=$((NOW + GRACE)) STAGE=stop
                advance
                return
            else
                READY[i]=true DIRTY[i]=1
            fi
            CURRENT=$((CURRENT + 1))
        done
        STAGE=main
        for i in "${!NAME[@]}"; do
            [[ ${KIND[i]} == main ]] && begin "$i"
        done
        ;;
    main)
        all_over main || return
        STOP_AT=$((NOW + GRACE))
        STAGE=last
        advance
        ;;
    stop)
        { all_over main && all_over init; } || return
        STAGE=last
        advance
        ;;
    last)
        # sidecars, the last one first, in what is left of the time
        for ((i = ${#NAME[@]} - 1; i >= 0; i--)); do
            [[ ${KIND[i]} == sidecar && ${STEP[i]} && ! ${OVER[i]} ]] || continue
            ask_to_end "$i" $((STOP_AT - NOW < 200 ? 200 : STOP_AT - NOW))
            [[ ${OVER[i]} ]] || return
        done
        STAGE=end
        ;;
    esac
}

# all_over KIND: whether no container of the kind runs or will run.
all_over() {
    local i
    for i in "${!NAME[@]}"; do
        [[ ${KIND[i]} == "$1" ]] || continue
        [[ ${OVER[i]} || (! ${STEP[i]} && $STOPPING) ]] || return 1
    done
}

finish() {
    local i phase=Succeeded
    for i in "${!NAME[@]}"; do
        [[ ${KIND[i]} == main && ${CODE[i]} != 0 ]] && phase=Failed
    done
    phase=${FORCED:-$phase}
    clock
    flush
    for i in $SIZE_PID $USAGE_PID $REACHER; do
        end_group "$i"
    done
    end_terminal run/terminal.*
    runtime_end
    unmount_fuse
    remove_scratch
    drop_secrets
    end_group "$GUARD"
    tail_of_script
    trap - EXIT
    # last: once the hub knows the end, it may have the directory removed
    last_state "$phase"
    [[ $phase == Succeeded ]]
    exit
}

# drop_secrets: remove what only containers needed. The first two lines of job.sh remain: the submitter reads the second
# one. The file is truncated in place, so they are complete without fsync, and it is the last, as the guard may call it.
drop_secrets() {
    local path first second
    for path in volumes run/fuse run/pre-exec "${RUNTIME_SECRETS[@]}"; do
        [[ ! -e $path ]] || remove_tree "$path"
    done
    remove run/*.{env,env.more,rc,hook,startup,liveness,readiness}
    { IFS= read -r first && IFS= read -r second; } <job.sh
    truncate -s $((${#first} + ${#second} + 2)) job.sh
}

# The script itself ended unexpectedly.
died() {
    local i
    trap - EXIT
    set +u
    for i in "${!PID[@]}"; do
        [[ ! ${PID[i]} ]] || end_now "$i"
    done
    runtime_end
    unmount_fuse
    remove_scratch
    drop_secrets
    end_group "$GUARD"
    POD_REASON=ScriptError
    POD_MESSAGE='the job script ended unexpectedly; see script.log'
    clock
    last_state Failed
    exit 1
}

# last_state PHASE: write the end. A disk or a quota may be full for a moment only, so this tries for half a minute.
last_state() {
    local i
    pod_state "$1"
    for ((i = 0; i < 60; i++)); do
        [[ $FLUSH_FAILED ]] || return
        sleep 0.5
        flush
    done
}

# stand_guard PID: wait for any end of the script: not every batch system ends the processes that it leaves.
stand_guard() {
    trap '' TERM INT HUP
    # nobody writes to it
    [[ ! $WAKE ]] || exec {WAKE}<>run/guard || WAKE=''
    while kill -0 "$1"; do
        nap 1
    done
    exec "$BASH" job.sh leftovers
}

# leftovers: what job.sh does if it is run after its first run was killed, on the same machine.
leftovers() {
    local i pid began boot volume
    # else the directory has a new job by now, which ran nothing: its script must stay
    [[ -d started ]] || return 0
    [[ -d run ]] || {
        drop_secrets
        return 0
    }
    [[ ! -w script.log ]] || exec >>script.log 2>&1
    note 'killed: what is left of the containers ends now'
    runtime_check >/dev/null
    read -r BOOT </proc/sys/kernel/random/boot_id
    for i in "${!NAME[@]}"; do
        { read -r pid began boot <"run/${NAME[i]}.pid"; } 2>/dev/null || continue
        started_at "$pid"
        if [[ $boot != "$BOOT" || ($RESULT && $RESULT != "$began") ]]; then
            runtime_clean "$i" # the number is another process's by now
            continue
        fi
        PID[i]=$pid
        end_now "$i"
    done
    for volume in "${FUSE[@]}"; do
        [[ $FUSE_MODE ]] || FUSE_PID[$volume]=''
    done
    unmount_fuse
    end_terminal run/terminal.*
    runtime_end
    remove_scratch
    drop_secrets
    return 0
}
