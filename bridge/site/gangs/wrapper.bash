# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The wrappers of the ranks, which run the scripts of their pods. See launcher.bash for the variables and functions.

# --- on another machine of the job, without a task for each rank ----------------------------------------------------------
# machine NUMBER: start the wrappers of a machine, and pass on a signal to them.
machine() {
    local at=machines/$1 asked=''
    # HTCondor may start this script before that of the first machine
    mkdir -p ready machines
    # a second run of the job starts nothing: HTCondor runs a job again that has lost a machine
    mkdir "$at" 2>/dev/null || exit 0
    # pbs_mom has no file for the output of a task
    exec >>script.log 2>&1
    begin
    put "$at/host" "$HOST"
    start_here "$1"
    while any_task; do
        if [[ $STOP && ! $asked ]]; then
            asked=1
            kill -TERM "${TASKS[@]}" 2>/dev/null
        fi
        nap
    done
    : >"$at/ended"
}

# --- on the machine of a rank -----------------------------------------------------------------------------------------
# member RANK: report that the machine is ready, wait for the start, and run the pods of the rank one after the other.
member() {
    local rank=$1 last='' until
    clock
    # a machine may have several pods, each with a part of its GPUs
    find_place "$rank"
    # the start of a pod takes 0.04 s of a CPU
    export PODBRIDGE_BEGIN_TIME=$((BESIDE < 100 ? 100 + BESIDE * 4 : 500))
    share_devices "${SLURM_LOCALID:+$((SLURM_LOCALID * GPUS))}"
    if [[ $GATE ]]; then
        read -r -t "$START_WAIT" -u "$GATE"
        exec {GATE}>&-
    fi
    list .
    [[ $NAMES == *' go '* ]] || report_ready "$rank" || exit 1
    # the launcher may first wait for a grant, and for a pod
    until=$((NOW + GRANT_WAIT + (PLACE_WAIT + START_WAIT * 2) * 100))
    while [[ $NAMES != *' go '* ]]; do
        clock
        if [[ $STOP || $NAMES == *' end '* ]] || ((NOW >= until)); then
            exit 1
        fi
        nap
        list .
    done
    read -r MACHINES <go
    export PODBRIDGE_GROUP_SIZE=$SIZE PODBRIDGE_GROUP_RANK=$rank PODBRIDGE_GROUP_FILE=$PWD/hosts
    # the kernel allows 128 KiB for one variable
    ((${#MACHINES} >= 100000)) || export PODBRIDGE_GROUP_HOSTS=$MACHINES
    while :; do
        read_rank "$rank"
        if [[ $RANK_UID && $RANK_UID != "$last" ]]; then
            # in a subshell: it reads the pods of all ranks
            [[ ! $last ]] || (write_hosts)
            last=$RANK_UID
            run_script "$rank" "$last"
        fi
        list .
        [[ ! $STOP && $NAMES != *' end '* ]] || exit 0
        pause
    done
}

# pause: a second, but not after a signal.
pause() {
    local i
    for ((i = 0; i < 5; i++)); do
        [[ ! $STOP ]] && nap
    done
}

# share_devices FIRST: keep only the GPUS devices from the first one on, by default DEVICE.
share_devices() {
    local name devices
    ((GPUS)) || return 0
    # podman and enroot use these numbers; srun passes on those of the first machine
    [[ ! ${SLURM_STEP_GPUS-} ]] || export SLURM_JOB_GPUS=$SLURM_STEP_GPUS
    for name in SLURM_JOB_GPUS SLURM_STEP_GPUS CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK; do
        [[ ${!name-} ]] || continue
        IFS=, read -r -a devices <<<"${!name}"
        ((${#devices[@]} > GPUS)) || continue
        devices=("${devices[@]:${1:-$DEVICE}:GPUS}")
        printf -v "$name" '%s' "$(IFS=, && printf '%s' "${devices[*]}")"
    done
}

# run_script RANK UID: run the script of a pod to its end, and record the exit code, and whether the end of the job was the
# cause.
run_script() {
    local pid code count=0 asked='' killed=''
    note "rank $1: pod $RANK_POD ($2) starts on $HOST"
    "$BASH" "$JOBS/$2/job.sh" >>"$JOBS/$2/script.log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if ((count++ % 5 == 0)) && [[ ! $killed ]]; then
            list control
            if [[ $NAMES == *" kill-$2 "* ]]; then
                killed=1
                kill -KILL "$pid"
            fi
            list .
        fi
        if [[ ! $asked && ($STOP || $NAMES == *' end '*) ]]; then
            asked=1
            kill -TERM "$pid"
        fi
        nap
    done 2>/dev/null
    wait "$pid"
    code=$?
    # a script that was killed has left its containers
    ((code <= 128)) || "$BASH" "$JOBS/$2/job.sh" leftovers </dev/null
    [[ ! $STOP ]] || asked=1
    record_end "$1" "$2" "$code${asked:+ stopped}"
    note "rank $1: pod $2 ended with exit code $code"
}

# leftovers: what job.sh does if it is run after its first run was killed, on the same machine.
leftovers() {
    local rank
    list ended
    for ((rank = 0; rank < SIZE; rank++)); do
        read_rank "$rank"
        if [[ $RANK_UID && -d $JOBS/$RANK_UID/started && $NAMES != *" $rank.$RANK_UID "* ]]; then
            "$BASH" "$JOBS/$RANK_UID/job.sh" leftovers </dev/null
        fi
    done
}
