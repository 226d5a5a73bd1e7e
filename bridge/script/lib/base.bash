# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Clock, state files, wake-ups. The working directory is always the job's directory; paths are relative to it.

# tools such as pivot_root are there, and the PATH of a batch job often has /usr/bin only
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"

declare -a STATE REASON PID BEGAN ENDED LAST CODE RESTARTS UP READY DIRTY NEXT BACKOFF WHY_KILLED
declare -a KILL_AT KILLED STEP HOOK OVER SAYS
declare -A HAPPENED HAPPENED_AT HAPPENED_TOLD
declare -A PROBE PROBE_AT PROBE_PID PROBE_UNTIL PROBE_GOOD PROBE_BAD
POD_REASON='' POD_MESSAGE='' POD_STATE='' TICKET='' STAGE=init WAKE='' FLUSH_AT=0 FLUSH_FAILED='' TTY=''

# NOW: monotonic centiseconds. TIME: seconds since 1970.
clock() {
    local up
    read -r up _ </proc/uptime
    up=${up/./}
    # 10#: a number with a leading 0 would be octal
    NOW=$((10#$up))
    printf -v TIME '%(%s)T' -1
}

# started_at PID: RESULT is the start of a process of this machine, in clock ticks; empty: there is none.
started_at() {
    local line fields
    RESULT=''
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return
    # the name of the command stands in parentheses, and may have blanks and parentheses itself
    read -r -a fields <<<"${line##*) }"
    RESULT=${fields[19]}
}

# nap [SECONDS]: wait, by default 0.2 s, or until something is written to the wake-up FIFO.
nap() {
    if [[ $WAKE ]]; then
        read -r -t "${1:-0.2}" -n 1 -u "$WAKE" _
    else
        sleep "${1:-0.2}"
    fi
}

# list FOLDER: NAMES has the names in it. With its default options, NFS remembers for half a minute that a name is absent;
# when a folder is opened, it asks the server whether the folder has changed.
list() {
    local path
    NAMES=' '
    for path in "$1"/*; do
        NAMES+="${path##*/} "
    done
}

# Notify the submitter of a change of this job.
announce() {
    : >"../../changed/${PWD##*/}"
} 2>/dev/null

# pod_state PHASE: write state/pod.json. If that fails, each flush tries again.
pod_state() {
    local finished=null
    [[ $1 == Running ]] || finished=$TIME FLUSH_AT=0
    printf -v POD_STATE '{"phase":"%s","reason":"%s","message":"%s","host":"%s","ip":"%s","startedAt":%s,"finishedAt":%s,"ticket":"%s"}' \
        "$1" "$POD_REASON" "$POD_MESSAGE" "$HOST" "$ADDRESS" "$POD_BEGAN" "$finished" "$TICKET"
    flush
}

# Write the state of every container that has changed, then that of the pod. False: a part is not written, because a
# disk or a quota is full; it remains in DIRTY or POD_STATE, and the file keeps the state before. Nothing is written before
# FLUSH_AT.
flush() {
    local i text written=() files=() failed=''
    ((NOW >= FLUSH_AT)) || return 0
    for i in "${!DIRTY[@]}"; do
        occurrences "$i"
        printf -v text '{"state":"%s","reason":"%s","message":"%s","startedAt":%s,"ended":%s,"restarts":%d,"started":%s,"ready":%s,"last":%s%s}' \
            "${STATE[i]}" "${REASON[i]}" "${SAYS[i]}" "${BEGAN[i]}" "${ENDED[i]}" "${RESTARTS[i]}" "${UP[i]}" "${READY[i]}" \
            "${LAST[i]}" "$RESULT"
        if write_new "${NAME[i]}.json" "$text"; then
            written+=("$i") files+=("state/.new/${NAME[i]}.json")
        else
            failed=1
        fi
    done
    if [[ $POD_STATE && ! $failed ]]; then
        # the last one, as mv keeps the order
        if write_new pod.json "$POD_STATE"; then
            written+=(pod) files+=(state/.new/pod.json)
        else
            failed=1
        fi
    fi
    if ((${#files[@]})); then
        # twice: a signal to everything may have hit mv itself
        if mv -f "${files[@]}" state/ || mv -f "${files[@]}" state/; then
            for i in "${written[@]}"; do
                if [[ $i == pod ]]; then
                    POD_STATE=''
                else
                    unset "DIRTY[i]"
                fi
            done
            announce
        else
            failed=1
        fi
    fi
    [[ $FLUSH_FAILED && ! $failed ]] && note 'the state was written late: the disk or a quota was full'
    FLUSH_FAILED=$failed
    [[ ! $failed ]]
}

# write_new NAME LINE: write a file of state/.new. It is read again, because bash ignores errors of close, and NFS
# reports an exceeded quota there.
write_new() {
    local found=''
    printf '%s\n' "$2" >"state/.new/$1" && IFS= read -r found <"state/.new/$1" && [[ $found == "$2" ]] && return 0
    rm -f "state/.new/$1"
    return 1
} 2>/dev/null

# happened I REASON TEXT: something that becomes an Event of the pod. Of those with the same reason and first word, the last is
# kept, with a count: a text that changes at each failure must not fill the state. A repetition is written after ten seconds
# at the earliest.
happened() {
    local key="$1.$2.${3%% *}" count text
    json_text "$3"
    text=$RESULT
    count=${HAPPENED[$key]-}
    count=$((${count%% *} + 1))
    HAPPENED[$key]="$count $text" HAPPENED_AT[$key]=$TIME
    ((count > 1 && NOW - ${HAPPENED_TOLD[$key]:-0} < 1000)) && return
    HAPPENED_TOLD[$key]=$NOW DIRTY[$1]=1
}

# occurrences I: RESULT is the member of the state that lists them.
occurrences() {
    local key reason list=''
    for key in "${!HAPPENED[@]}"; do
        [[ ${key%%.*} == "$1" ]] || continue
        reason=${key#*.}
        list+=",{\"reason\":\"${reason%%.*}\",\"message\":\"${HAPPENED[$key]#* }\",\"count\":${HAPPENED[$key]%% *},\"at\":${HAPPENED_AT[$key]}}"
    done
    RESULT=${list:+",\"occurrences\":[${list:1}]"}
}

# json_text TEXT: RESULT is at most 512 characters of it for a string of JSON. Bytes that are not ASCII become "?": what a
# program writes need not be UTF-8, and the cut may be within a character.
json_text() {
    RESULT=${1:0:512}
    RESULT=${RESULT//[$'\n\r\t']/ }
    RESULT=${RESULT//[^ -~]/?}
    RESULT=${RESULT//\\/\\\\}
    RESULT=${RESULT//\"/\\\"}
}

# safe TEXT: RESULT is TEXT without characters that JSON does not allow in strings; names of hosts and requests are not
# trusted.
safe() {
    RESULT=${1//[^A-Za-z0-9.:_-]/}
    RESULT=${RESULT:0:255}
}

find_address() {
    local text
    safe "${HOSTNAME:-unknown}"
    HOST=$RESULT
    find_source || {
        text=$(ip -4 route get 192.0.2.1 2>/dev/null)
        if [[ $text =~ \ src\ ([0-9.]+) ]]; then
            ADDRESS=${BASH_REMATCH[1]}
        else
            text=$(hostname -I 2>/dev/null)
            safe "${text%% *}"
            ADDRESS=${RESULT:-127.0.0.1}
        fi
    }
}

# find_source: ADDRESS is the machine's on the route to an address for documentation (RFC 5737): to connect a UDP socket
# sends nothing, and the kernel lists both ends, in the machine's byte order.
find_source() {
    local lines socket
    exec {socket}<>/dev/udp/192.0.2.1/9 || return
    mapfile -t lines </proc/net/udp
    exec {socket}>&-
    [[ ${lines[*]} =~ (..)(..)(..)(..):....\ (010200C0|C0000201):0009 ]] || return
    set -- "${BASH_REMATCH[@]:1:4}"
    [[ ${BASH_REMATCH[5]} == C* ]] || set -- "$4" "$3" "$2" "$1"
    printf -v ADDRESS '%d.%d.%d.%d' "${@/#/0x}"
} 2>/dev/null

# remove FILE...: those that exist.
remove() {
    local file existing=()
    for file in "$@"; do
        [[ ! -e $file && ! -L $file ]] || existing+=("$file")
    done
    ((${#existing[@]} == 0)) || rm -f -- "${existing[@]}"
}

# note TEXT: write a line to script.log, for the site's administrators.
note() {
    printf '%(%Y-%m-%dT%H:%M:%S%z)T %s\n' -1 "$1"
}
