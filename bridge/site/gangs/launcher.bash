# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The one job of a group. The launcher starts a wrapper for each rank, which runs the scripts of the pods of that rank.
# Set by job.sh: SIZE, PARTS (see find_place), and STARTER and TASK: the command that starts a task for each pod (srun;
# member) or for each machine (pbsdsh; machine). Without a command, the batch system itself runs "job.sh machine NUMBER" on
# each machine but the first.
# A rank file has three lines: UID, host names, and namespace/name of the pod.

PLACE_WAIT=${PODBRIDGE_PLACE_WAIT_SECONDS:-60}
START_WAIT=${PODBRIDGE_START_WAIT_SECONDS:-60}
# seconds after which the launcher records the end of a pod whose wrapper does not answer a request to kill it
KILL_WAIT=30
# seconds in which wrappers end their pods; batch systems allow about as much after SIGTERM
END_WAIT=60
JOBS=${PWD%/*}
STOP='' STOP_BY='' GATE='' TASKS=()

launch() {
    mkdir -p state/.new ready machines ended control ranks granted || exit 1
    begin
    POD_BEGAN=$TIME
    local phase=Failed
    # the submitter writes control/grant once all pods are granted
    if ! await_grant; then
        give_back
    elif await_members && start_members; then
        let_go
        await_end && phase=Succeeded
    fi
    end_members
    note "$phase $POD_REASON $POD_MESSAGE"
    pod_state "$phase"
    [[ $phase == Succeeded ]]
    exit
}

# active: called once the job has its grant, or needs none.
active() {
    clock
    TICKET='' POD_BEGAN=$TIME
    pod_state Running
}

take_signals() {
    trap 'STOP=Terminated STOP_BY=signal' TERM INT
    trap ':' HUP
}

# begin: what the launcher and each wrapper with a script of its own do first.
begin() {
    # srun passes on the name of the first machine
    HOSTNAME=${SLURMD_NODENAME:-$HOSTNAME}
    take_signals
    local fifo="control/.wake.${HOSTNAME:-}.$$"
    if mkfifo "$fifo" 2>/dev/null; then
        { exec {WAKE}<>"$fifo"; } 2>/dev/null || WAKE=''
        rm -f "$fifo"
    fi
    clock
    find_address
}

# put PATH TEXT: write a file in one step.
put() {
    local new="${1%"${1##*/}"}.${1##*/}.${HOSTNAME:-}.$BASHPID"
    printf '%s\n' "$2" >"$new" && mv -f "$new" "$1"
}

# read_rank RANK: RANK_UID, RANK_HOSTS and RANK_POD of the pod that has the rank now.
read_rank() {
    RANK_UID='' RANK_HOSTS='' RANK_POD=''
    { read -r RANK_UID && read -r RANK_HOSTS && read -r RANK_POD; } 2>/dev/null <"ranks/$1"
}

# is_stopped: whether this job is to end.
is_stopped() {
    list control
    [[ $NAMES != *' stop '* ]] || STOP=Deleted
    POD_REASON=$STOP
    [[ $STOP ]]
}

# fail REASON MESSAGE
fail() {
    local LC_ALL=C
    json_text "$2"
    POD_REASON=$1 POD_MESSAGE=$RESULT
}

# await_members: wait until each rank has a pod that may start. A cancelled pod has the link "started".
await_members() {
    local rank absent until=$((NOW + PLACE_WAIT * 100))
    while :; do
        absent=''
        for ((rank = 0; rank < SIZE; rank++)); do
            read_rank "$rank"
            if [[ ! $RANK_UID || -L $JOBS/$RANK_UID/started || ! -e $JOBS/$RANK_UID/job.sh ]]; then
                absent=$rank
                break
            fi
        done
        [[ $absent ]] || return 0
        ! is_stopped || return 1
        clock
        if ((NOW >= until)); then
            fail GangIncomplete "pod $RANK_POD (rank $absent of the group) was cancelled, and no other pod took its place in $PLACE_WAIT s"
            return 1
        fi
        nap
    done
}

# find_place RANK: the MACHINE of a rank, from 0, the number of the component's pods there, BESIDE, the number of its GPUS, and
# the first of them there, DEVICE. PARTS has for each component: pods, pods of a machine, GPUs of a pod, its first machine, and
# its first GPU there. The ranks fill one machine after the other.
find_place() {
    local part size index=$1
    for part in "${PARTS[@]}"; do
        read -r size BESIDE GPUS MACHINE DEVICE <<<"$part"
        ((index >= size)) || break
        ((index -= size))
    done
    ((MACHINE += index / BESIDE, DEVICE += index % BESIDE * GPUS))
}

# start_members: start a wrapper for each rank; false, if not all have reported that they are ready.
start_members() {
    local until word command=() program=("$BASH" "$PWD/job.sh" "$TASK")
    ABSENT=0 MACHINES=''
    if ((${#STARTER[@]})); then
        # srun takes the program of each component
        for word in "${STARTER[@]}"; do
            [[ $word != : ]] || command+=("${program[@]}")
            command+=("$word")
        done
        "${command[@]}" "${program[@]}" </dev/null &
        TASKS=("$!")
    else
        start_here 0
    fi
    clock
    until=$((NOW + START_WAIT * 100))
    while :; do
        [[ ! $ABSENT ]] || find_absent
        [[ $ABSENT ]] || return 0
        ! is_stopped || return 1
        clock
        if ((NOW >= until)) || ! all_tasks; then
            find_absent
            [[ $ABSENT ]] || return 0
            read_rank "$ABSENT"
            fail MemberNotStarted "pod $RANK_POD (rank $ABSENT of the group) did not start on $(machine_of "$ABSENT"); see script.log of the group's job"
            return 1
        fi
        if ((${#STARTER[@]})); then
            nap
        else
            nap 0.05 # most of them are on this machine
        fi
    done
}

# start_here NUMBER: start a wrapper for each rank of a machine, the one with this number. Each is a copy of this process: it
# has read the script, and knows the machine's address. All nap at one FIFO, so nobody may write to it: of two readers that
# are woken, one would wait forever.
start_here() {
    local rank ranks=() runs=()
    for ((rank = 0; rank < SIZE; rank++)); do
        find_place "$rank"
        ((MACHINE == $1)) || continue
        ranks+=("$rank")
        read_rank "$rank" && runs+=("$JOBS/$RANK_UID/run")
    done
    # what takes each script a program: one for all
    { mkdir "${runs[@]}"; mkfifo "${runs[@]/%//waker}" "${runs[@]/%//guard}"; } 2>/dev/null
    find_namespace
    export PODBRIDGE_NAMESPACE="$NAMESPACE $MAPS_USER"
    # no other machine to wait for: the wrappers begin with their pods
    ((${#ranks[@]} != SIZE)) || open_gate
    if [[ $GATE ]]; then
        for rank in "${ranks[@]}"; do
            report_ready "$rank"
        done
    fi
    for rank in "${ranks[@]}"; do
        (take_signals && member "$rank") </dev/null &
        TASKS+=("$!")
    done
    if [[ $GATE ]]; then
        find_absent
        [[ $ABSENT ]] || let_go
        printf '\n%.0s' "${ranks[@]}" >&"$GATE"
    fi
}

# open_gate: GATE is a pipe from which each wrapper reads a line before it looks for "go". The lines come after the last fork,
# which may fail: then no pod starts.
open_gate() {
    local fifo=control/.gate
    { mkfifo "$fifo" && exec {GATE}<>"$fifo"; } 2>/dev/null || GATE=''
    rm -f "$fifo"
}

# find_absent: ABSENT is the first rank that is not ready; empty: all are. MACHINES has the machines of those before it.
find_absent() {
    local rank host
    list ready
    for ((rank = ABSENT; rank < SIZE; rank++)); do
        if [[ $NAMES != *" $rank "* ]] || ! { read -r host _ <"ready/$rank"; } 2>/dev/null; then
            ABSENT=$rank
            return
        fi
        MACHINES+="${MACHINES:+,}$host"
    done
    ABSENT=''
}

# all_tasks, any_task: whether all processes that start_members has started still run, or any.
all_tasks() {
    local pid
    for pid in "${TASKS[@]}"; do
        kill -0 "$pid" 2>/dev/null || return 1
    done
}

any_task() {
    local pid
    for pid in "${TASKS[@]}"; do
        ! kill -0 "$pid" 2>/dev/null || return 0
    done
    return 1
}

# any_machine: whether a machine still has wrappers, that has begun with "job.sh machine NUMBER".
any_machine() {
    local begun
    for begun in machines/*/; do
        [[ ! -d $begun || -e ${begun}ended ]] || return 0
    done
    return 1
}

# machine_of RANK: the machine on which a wrapper that is not ready was to run.
machine_of() {
    local MACHINE DEVICE GPUS BESIDE number names=() host=''
    find_place "$1"
    number=$MACHINE
    case ${STARTER[0]-} in
    *srun) mapfile -t names < <(slurm_machines) ;;
    *pbsdsh) mapfile -t names <"$PBS_NODEFILE" ;;
    esac 2>/dev/null
    { read -r host <"machines/$number/host"; } 2>/dev/null
    host=${names[number]-$host}
    ((number)) || host=${host:-$HOST}
    if [[ $host ]]; then
        safe "$host"
        printf 'machine %s' "$RESULT"
    else
        printf 'machine %s of the job, which has not begun' "$number"
    fi
}

# slurm_machines: the machines of the job in the order of the ranks.
slurm_machines() {
    local part list
    for ((part = 0; part < ${#PARTS[@]}; part++)); do
        list=SLURM_JOB_NODELIST
        ((${#PARTS[@]} == 1)) || list+=_HET_GROUP_$part
        "${STARTER[0]%srun}scontrol" show hostnames "${!list-}" 2>/dev/null
    done
}

# report_ready RANK: the machine of the rank is ready. Who reads it waits for a complete line.
report_ready() {
    printf '%s %s\n' "$HOST" "$ADDRESS" >"ready/$1"
}

# let_go: let the wrappers start their pods.
let_go() {
    [[ ! -e go ]] || return 0
    write_hosts
    put go "$MACHINES"
}

# write_hosts: address and names of each pod, as in /etc/hosts, by rank.
write_hosts() {
    local rank address text=''
    for ((rank = 0; rank < SIZE; rank++)); do
        read_rank "$rank"
        read -r _ address <"ready/$rank"
        text+="$address${RANK_HOSTS:+ $RANK_HOSTS}"$'\n'
    done
    put hosts "${text%$'\n'}"
}

# await_end: wait until the pods of all ranks are over; false, if this job is to end before.
await_end() {
    local -A first_request
    while :; do
        ! is_stopped || return 1
        record_unanswered_kills
        if all_over; then
            # a submitter that accepts another pod first writes the rank file, and then looks for this directory
            mkdir -p closed
            all_over && return 0
            rmdir closed
        fi
        if ! any_task; then
            all_over && return 0
            fail Killed 'the processes that run the pods of the group were killed'
            return 1
        fi
        pause
    done
}

all_over() {
    local rank
    list ended
    for ((rank = 0; rank < SIZE; rank++)); do
        read_rank "$rank"
        [[ $NAMES == *" $rank.$RANK_UID "* ]] || return 1
    done
}

# record_unanswered_kills: a request is the file control/kill-<uid> with the rank.
record_unanswered_kills() {
    local path uid rank
    clock
    for path in control/kill-*; do
        uid=${path#control/kill-}
        { read -r rank <"$path"; } 2>/dev/null || continue
        [[ $rank =~ ^[0-9]{1,4}$ && ! -e ended/$rank.$uid ]] || continue
        first_request[$uid]=${first_request[$uid]:-$NOW}
        ((NOW - ${first_request[$uid]} < KILL_WAIT * 100)) || record_end "$rank" "$uid" 137
    done
}

record_end() {
    put "ended/$1.$2" "$3"
    : >"../../changed/$2"
    announce
}

# end_members: end all wrappers and what they run. HTCondor kills what the other machines run when this script ends.
end_members() {
    local until pid
    : >end
    clock
    until=$((NOW + END_WAIT * 100))
    while { any_task || any_machine; } && ((NOW < until)); do
        nap
        clock
    done
    for pid in "${TASKS[@]}"; do
        kill -KILL "$pid" 2>/dev/null
    done
    wait
}
