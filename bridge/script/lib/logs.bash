# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Logs of containers, and their limit. A container writes to a pipe, because a program that opens /dev/stderr for writing
# truncates a file; a process of the script, the collector, appends what it reads to the log. The collector has the log open,
# so the file keeps its name and its beginning is removed: by a hole or, if the file system has no holes, by a copy and a
# truncation. All offsets count from the start of the run.
#   logs/<name>.log    what the container writes
#   logs/<name>.first  "<first> <base>": offsets of the first byte that is kept, and of the log's own first byte.
#                      A third word, "moving": the log is being truncated, and nothing in it counts
#   logs/<name>.kept   where there are no holes: the bytes from <first> on that the log had before
#   logs/<name>.index  lines "<offset> <seconds since 1970>": how much had been written, and when

LOG_STEP=${PODBRIDGE_LOG_MAX_SIZE:-10485760} LOG_FILES=${PODBRIDGE_LOG_MAX_FILES:-5} LOG_CUT=''
LOG_BOUND=$((LOG_STEP * LOG_FILES)) LOG_LINE=65536 INDEX_BOUND=524288 NO_HOLE=3
declare -a LOG_FIRST LOG_BASE LOG_SIZE LOG_LOOKED LOG_AT LOG_PID COLLECTOR

# new_log I: start a log; that of the run before, if there is one, becomes the previous log. The order matters to
# bridge/site/logs/log_files.py: what <first> says of a log is there before the log has its name, and as long as it has it.
new_log() {
    local i=$1 log=logs/${NAME[$1]}
    if [[ -e $log.log && ${ENDED[i]} != null ]]; then
        rm -f "$log.previous."{log,first,kept}
        if ((LOG_FIRST[i] + LOG_BASE[i])); then
            printf '%s %s\n' "${LOG_FIRST[i]}" "${LOG_BASE[i]}" >"$log.previous.first"
        fi
        [[ -e $log.index ]] && mv -f "$log.index" "$log.previous.index"
        mv -f "$log.log" "$log.previous.log"
        [[ -e $log.kept ]] && mv -f "$log.kept" "$log.previous.kept"
        rm -f "$log.first"
    fi
    LOG_FIRST[i]=0 LOG_BASE[i]=0 LOG_SIZE[i]=0 LOG_LOOKED[i]=$NOW LOG_AT[i]=$((NOW + 100)) LOG_PID[i]=''
    printf '0 %s\n' "$TIME" >>"$log.index"
    : >>"$log.log"
}

# collect I: OUTPUT is a descriptor whose text goes to the log. The collector ends when everybody has closed it.
collect() {
    exec {OUTPUT}> >(
        [[ $WAKE ]] && exec {WAKE}>&-
        # a batch system signals all processes of a job, and what the container says about its end must be kept
        trap '' TERM INT HUP
        trap - EXIT
        # cat fails if the disk is full; the container must not fail for it
        until cat 2>/dev/null; do sleep 0.5; done >>"logs/${NAME[$1]}.log"
    )
    COLLECTOR[$1]=$!
}

# end_collector I: the container has ended; wait until its log is complete. A process that has left the container's session
# may keep the pipe open: after a second in which the log has not grown, the collector ends anyway.
end_collector() {
    local pid=${COLLECTOR[$1]} size=-1 quiet=0
    COLLECTOR[$1]=''
    while [[ $pid ]] && kill -0 "$pid"; do
        collected "$pid"
        quiet=$((RESULT == size ? quiet + 1 : 0)) size=$RESULT
        if ((quiet > 20)); then
            family "$pid"
            kill -KILL "${FAMILY[@]}"
        elif ((quiet > 2)); then
            sleep 0.05 # a process: where the machine is busy, the collector gets more time, too
        else
            nap 0.02
        fi
    done
} 2>/dev/null

# collected PID: RESULT is how much a collector has written, which costs no process to find out; empty: it has ended.
collected() {
    local position=''
    # to the end of the file: if the process ended after the first line, bash could not seek back, and the next read would
    # return the other lines, whatever its file is
    { read -r -d '' _ position _ <"/proc/$1/fdinfo/1"; } 2>/dev/null
    RESULT=$position
}

# look_at_log I: about once a second; at each turn while it grows by half a file a second, or has since the last look.
look_at_log() {
    local i=$1 log=logs/${NAME[$1]} known=${LOG_SIZE[$1]}
    if [[ ${LOG_PID[i]} ]]; then
        kill -0 "${LOG_PID[i]}" 2>/dev/null && return
        end_cut "$i"
    fi
    ((NOW >= LOG_AT[i])) || has_leapt "$i" || return 0
    # of the same tick of the kernel's clock (4 ms): the log may have grown after the index
    [[ $log.log -ot $log.index ]] && return
    index_log "$i"
    LOG_AT[i]=$NOW
    (((LOG_SIZE[i] - known) * 200 > LOG_STEP * (NOW - LOG_LOOKED[i]))) || LOG_AT[i]=$((NOW + 100))
    LOG_LOOKED[i]=$NOW
    if ((LOG_SIZE[i] - LOG_BASE[i] > LOG_BOUND / 2)) && [[ ! $LOG_CUT ]]; then
        find_cut
    fi
    if is_long "$i" || { [[ $LOG_CUT == copy ]] && ((LOG_SIZE[i] - LOG_BASE[i] > LOG_BOUND / 2)); }; then
        in_background "cut_by_$LOG_CUT" "$i"
        LOG_PID[i]=$!
    fi
}

# has_leapt I: by what the collector has written.
has_leapt() {
    collected "${COLLECTOR[$1]}"
    ((LOG_BASE[$1] + RESULT - LOG_SIZE[$1] > LOG_STEP / 2))
}

# close_log I: the run has ended.
close_log() {
    [[ ! ${LOG_PID[$1]} ]] || end_cut "$1"
    index_log "$1"
    is_long "$1" || return 0
    [[ $LOG_CUT ]] || find_cut
    in_background "cut_by_$LOG_CUT" "$1"
    LOG_PID[$1]=$!
    end_cut "$1"
}

is_long() {
    ((LOG_SIZE[$1] - LOG_FIRST[$1] > LOG_BOUND))
}

# end_cut I: wait for the end of a cut.
end_cut() {
    local i=$1 log=logs/${NAME[$1]} first base code
    # "wait" alone ends at each signal that the script traps
    while kill -0 "${LOG_PID[i]}" 2>/dev/null; do
        sleep 0.05
    done
    wait "${LOG_PID[i]}"
    code=$?
    LOG_PID[i]=''
    ((code == 0)) || note "$log.log is too long and could not be cut ($code)"
    ((code != NO_HOLE)) || LOG_CUT=copy
    if { read -r first base _ <"$log.first"; } 2>/dev/null; then
        LOG_FIRST[i]=$first LOG_BASE[i]=$base
    fi
}

# LOG_CUT: how the beginning of a file is removed: whether the file system has holes.
find_cut() {
    LOG_CUT=copy
    : >logs/.hole
    if fallocate -p -o 0 -l 1 logs/.hole 2>/dev/null; then
        LOG_CUT=hole
    else
        note "logs/: no holes in files here (fallocate -p); long logs are copied and truncated, which can lose lines"
    fi
    rm -f logs/.hole
}

# cut_by_hole I: keep max_files - 1 times max_size.
cut_by_hole() {
    local log=logs/${NAME[$1]}
    line_start "$log.log" $((LOG_SIZE[$1] - LOG_STEP * (LOG_FILES - 1)))
    tell_first "$log" "$RESULT 0" || return
    fallocate -p -o 0 -l "$RESULT" "$log.log" || return "$NO_HOLE"
}

# cut_by_copy I: keep half of the limit. Bytes written after the second copy and before the truncation are lost.
cut_by_copy() {
    local log=logs/${NAME[$1]} base=${LOG_BASE[$1]} size from=0 first
    size=$((LOG_SIZE[$1] - base))
    ((size <= LOG_BOUND / 2)) || from=$((size - LOG_BOUND / 2))
    # the last truncation may have left the end of a line
    if ((from)) || [[ $(tail -c 1 "$log.kept" 2>/dev/null) ]]; then
        line_start "$log.log" "$from"
        from=$RESULT
    fi
    first=$((base + from))
    tell_first "$log" "$first $base" || return
    part_of "$log.log" "$from" $((size - from)) >"$log.kept"
    tell_first "$log" "$first $base moving" || return
    part_of "$log.log" "$size" "$LOG_STEP" >>"$log.kept"
    size=$(stat -c %s "$log.log") && truncate -s 0 "$log.log" && tell_first "$log" "$first $((base + size))"
}

# tell_first LOG TEXT: replace <name>.first.
tell_first() {
    printf '%s\n' "$2" >"$1.first.new" && mv -f "$1.first.new" "$1.first"
}

# part_of FILE OFFSET LENGTH
part_of() {
    tail -c "+$(($2 + 1))" "$1" | head -c "$3"
}

# line_start FILE OFFSET: RESULT is where the line of an offset begins, or, if that is not within LOG_LINE bytes before
# it, the line after it; LOG_LINE bytes after it if there is none, either.
line_start() {
    local most=$(($2 < LOG_LINE ? $2 : LOG_LINE)) begun
    begun=$({
        part_of "$1" $(($2 - most)) "$most"
        printf x
    } | tail -n 1 | wc -c)
    if ((begun <= most)); then
        RESULT=$(($2 - begun + 1))
    else
        RESULT=$(($2 + $(part_of "$1" "$2" "$LOG_LINE" | head -n 1 | wc -c)))
    fi
}

# end_of_log I: its last 80 lines, 2048 bytes at most. The bytes are counted first: a log with a hole has any length.
end_of_log() {
    local log=logs/${NAME[$1]}
    {
        [[ ! -e $log.kept ]] || tail -c 2048 "$log.kept"
        tail -c 2048 "$log.log"
    } | tail -c 2048 | tail -n 80
}

# index_log I: record the length of the log.
index_log() {
    local i=$1 log=logs/${NAME[$1]} sizes
    [[ -e $log.log ]] || return
    RESULT=''
    # what the collector has written is the length, unless a cut or the container itself has truncated the log
    ((++LOOKS[i] % 256)) && [[ $LOG_CUT != copy ]] && collected "${COLLECTOR[i]}"
    sizes=$RESULT
    [[ $sizes ]] || read -r -d '' -a sizes < <(stat -c %s "$log.log" "$log.index" 2>/dev/null)
    LOG_SIZE[i]=$((LOG_BASE[i] + sizes[0]))
    if ((LOG_SIZE[i] < LOG_FIRST[i])); then
        # the container itself has truncated it
        rm -f "$log.first"
        LOG_FIRST[i]=0
    fi
    if ((${sizes[1]:-0} > INDEX_BOUND)); then
        thin_index "$i"
    fi
    printf '%s %s\n' "${LOG_SIZE[i]}" "$TIME" >>"$log.index"
}

# thin_index I: remove entries of removed bytes, and times closer to the previous one than a thousandth of their age.
thin_index() {
    local index=logs/${NAME[$1]}.index size moment last=0
    while read -r size moment; do
        ((size > LOG_FIRST[$1] && (moment - last) * 1024 >= TIME - moment)) || continue
        printf '%s %s\n' "$size" "$moment"
        last=$moment
    done <"$index" >"$index.new"
    mv -f "$index.new" "$index"
}
