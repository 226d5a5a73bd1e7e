# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# What is looked at about once a second: logs, memory, the size of emptyDir volumes, and whether somebody asks for the use of
# CPU and memory.

WATCH_AT=0 SIZE_PID='' SIZE_AT=0 SIZE_BEGAN=0 USAGE_PID='' USAGE_AT=0

watch() {
    local i
    for i in "${!NAME[@]}"; do
        [[ ! ${PID[i]} ]] || look_at_log "$i"
    done
    ((NOW >= WATCH_AT)) || return
    WATCH_AT=$((NOW + 100))
    for i in "${!NAME[@]}"; do
        [[ ${PID[i]} ]] || continue
        if [[ ${MEMORY[i]} && ${STEP[i]} != creating ]]; then
            watch_memory "$i"
        fi
    done
    if ((${#SIZE_LIMIT[@]})); then
        watch_sizes
    fi
    watch_usage
    watch_channel
}

# watch_memory I: MEMORY is in KiB. Resident memory counts shared pages several times, so the proportional count decides.
watch_memory() {
    local i=$1 root
    runtime_pid "$i"
    root=$RESULT
    [[ $root ]] || return
    family "$root"
    ((RESIDENT * PAGE > MEMORY[i])) || return
    runtime_own "$i"
    proportional
    ((RESIDENT_KIB > MEMORY[i])) || return
    note "${NAME[i]}: $RESIDENT_KIB KiB of memory, limit ${MEMORY[i]} KiB"
    happened "$i" Killing "Container ${NAME[i]} uses $RESIDENT_KIB KiB of memory, more than its limit of ${MEMORY[i]} KiB"
    WHY_KILLED[i]=OOMKilled KILL_AT[i]=$((NOW + 100)) STEP[i]=terminating
    stop_probes "$i"
    runtime_signal "$i" KILL
}

# family PID: FAMILY are the process and all below it, and RESIDENT their pages.
family() {
    local queue=("$1") pid pages file children
    FAMILY=() RESIDENT=0
    if [[ ! -e /proc/self/task/$$/children && ! -e /proc/$$/task/$$/children ]]; then
        # a kernel without lists of children: the session will do
        read -r -d '' -a queue < <(ps -o pid= -s "$1")
    fi
    while ((${#queue[@]})); do
        pid=${queue[0]}
        queue=("${queue[@]:1}")
        pages=0
        { read -r _ pages _ <"/proc/$pid/statm"; } 2>/dev/null || continue
        FAMILY+=("$pid")
        RESIDENT=$((RESIDENT + pages))
        for file in "/proc/$pid/task"/*/children; do
            children=()
            { read -r -a children <"$file"; } 2>/dev/null
            queue+=("${children[@]}")
        done
    done
}

# RESIDENT_KIB: the proportional set size of FAMILY, or the resident one where the kernel does not count it.
proportional() {
    local pid key value sum=0 pages
    RESIDENT_KIB=0
    for pid in "${FAMILY[@]}"; do
        { read -r _ pages _ <"/proc/$pid/statm"; } 2>/dev/null && RESIDENT_KIB=$((RESIDENT_KIB + pages * PAGE))
    done
    for pid in "${FAMILY[@]}"; do
        [[ -r /proc/$pid/smaps_rollup ]] || return
        while read -r key value _; do
            [[ $key == Pss: ]] && sum=$((sum + value))
        done 2>/dev/null <"/proc/$pid/smaps_rollup"
    done
    ((sum)) && RESIDENT_KIB=$sum
}

# find_page: PAGE is the size of a page in KiB.
find_page() {
    local key value
    PAGE=''
    while read -r key value _; do
        [[ $key == KernelPageSize: ]] || continue
        PAGE=$value
        break
    done </proc/self/smaps
    PAGE=${PAGE:-$(($(getconf PAGESIZE || echo 4096) / 1024))}
} 2>/dev/null

# RESULT is the kernel's count of out-of-memory kills in this job's own cgroup.
oom_count() {
    local file key value line
    RESULT=0
    while IFS=: read -r _ key line; do
        case $key in
        '') file=/sys/fs/cgroup$line/memory.events ;;
        *memory*) file=/sys/fs/cgroup/memory$line/memory.oom_control ;;
        *) continue ;;
        esac
        [[ -r $file ]] || continue
        while read -r key value; do
            if [[ $key == oom_kill ]]; then
                RESULT=$value
                return
            fi
        done <"$file"
    done </proc/self/cgroup
}

# Whether the kernel killed something of this job for its memory since the container began.
cgroup_oom() {
    oom_count
    [[ $RESULT != "$OOM_BEFORE" ]]
}

# A look at the sizes takes as long as it takes, on the side; it gets at most a tenth of the time.
watch_sizes() {
    if [[ $SIZE_PID ]]; then
        kill -0 "$SIZE_PID" 2>/dev/null && return
        if ! wait "$SIZE_PID"; then
            POD_REASON=Evicted POD_MESSAGE='an emptyDir volume has outgrown its sizeLimit'
            stop_pod 0 Evicted
        fi
        SIZE_PID=''
        SIZE_AT=$((NOW + 10 * (NOW - SIZE_BEGAN - 100)))
    elif ((NOW >= SIZE_AT)); then
        SIZE_BEGAN=$NOW
        in_background sizes_are_kept
        SIZE_PID=$!
    fi
}

sizes_are_kept() {
    local volume size
    for volume in "${!SIZE_LIMIT[@]}"; do
        size=$(du -skx -- "scratch/$volume/" 2>/dev/null)
        size=${size%%[!0-9]*}
        ((${size:-0} <= SIZE_LIMIT[$volume])) || return 1
    done
}

# The submitter asks all jobs at once, by the time of one file: a look at it is answered by the cache of a shared file system.
# The measurement takes as long as it takes, on the side; there is at most one, and one each 5 s.
watch_usage() {
    kill -0 "$USAGE_PID" 2>/dev/null && return
    USAGE_PID=''
    [[ ../../usage -nt run/usage ]] && ((NOW >= USAGE_AT)) || return
    USAGE_AT=$((NOW + 500))
    local i
    for i in "${!NAME[@]}"; do
        # here, where it is remembered
        [[ ${STATE[i]} != running ]] || runtime_pid "$i"
    done
    in_background measure_usage
    USAGE_PID=$!
}

# measure_usage: write to run/usage the time in centiseconds, and a line for each running container: <name> <restarts> <CPU time
# in centiseconds> <KiB of memory>.
measure_usage() {
    local i text
    clock
    text=$((CLOCK_BASE + NOW))$'\n'
    for i in "${!NAME[@]}"; do
        [[ ${STATE[i]} == running ]] || continue
        runtime_pid "$i"
        family "$RESULT"
        cpu_of_family
        runtime_own "$i"
        proportional
        ((!RESIDENT_KIB)) || text+="${NAME[i]} ${RESTARTS[i]} $RESULT $RESIDENT_KIB"$'\n'
    done
    printf '%s' "$text" >run/usage.new && mv -f run/usage.new run/usage
}

# cpu_of_family: RESULT is the CPU time of FAMILY and of the children that they have waited for, at least 1. A tick is a
# centisecond on all machines of batch systems.
cpu_of_family() {
    local pid line fields sum=0
    for pid in "${FAMILY[@]}"; do
        { read -r line <"/proc/$pid/stat"; } 2>/dev/null || continue
        read -r -a fields <<<"${line##*) }"
        ((${#fields[@]} < 15)) || sum=$((sum + fields[11] + fields[12] + fields[13] + fields[14]))
    done
    RESULT=$((sum ? sum : 1))
}
