# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Clock, state files, wake-ups. The working directory is always the job's directory; paths are relative to it.

# tools such as pivot_root are there, and the PATH of a batch job often has /usr/bin only
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"

declare -a STATE REASON PID BEGAN ENDED LAST CODE RESTARTS UP READY DIRTY NEXT BACKOFF WHY_KILLED
declare -a KILL_AT STEP HOOK OVER SAYS
declare -A PROBE PROBE_AT PROBE_PID PROBE_UNTIL PROBE_GOOD PROBE_BAD
POD_REASON='' POD_MESSAGE='' TICKET='' STAGE=init WAKE=''

# NOW: monotonic centiseconds. TIME: seconds since 1970.
clock() {
    local up
    read -r up _ </proc/uptime
    up=${up/./}
    NOW=$((10#$up))
    printf -v TIME '%(%s)T' -1
}

# started_at PID: RESULT is the start of a process of this machine, in clock ticks; empty: there is none.
started_at() {
    local line fields
    RESULT=''
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return
    read -r -a fields <<<"${line##*) }"
    RESULT=${fields[19]}
}

nap() {
    if [[ $WAKE ]]; then
        read -r -t 0.2 -n 1 -u "$WAKE" _
    else
        sleep 0.2
    fi
}

# Notify the submitter of a change of this job.
announce() {
    : >"../../changed/${PWD##*/}"
} 2>/dev/null

# pod_state PHASE: write state/pod.json.
pod_state() {
    local finished=null
    [[ $1 == Running ]] || finished=$TIME
    printf '{"phase":"%s","reason":"%s","message":"%s","host":"%s","ip":"%s","startedAt":%s,"finishedAt":%s,"ticket":"%s"}\n' \
        "$1" "$POD_REASON" "$POD_MESSAGE" "$HOST" "$ADDRESS" "$POD_BEGAN" "$finished" "$TICKET" >state/.new/pod
    # twice: a signal to everything may have hit mv itself
    mv -f state/.new/pod state/pod.json || mv -f state/.new/pod state/pod.json
    announce
}

# Write the state of every container that has changed.
flush() {
    local i any=''
    for i in "${!DIRTY[@]}"; do
        printf '{"state":"%s","reason":"%s","message":"%s","startedAt":%s,"ended":%s,"restarts":%d,"started":%s,"ready":%s,"last":%s}\n' \
            "${STATE[i]}" "${REASON[i]}" "${SAYS[i]}" "${BEGAN[i]}" "${ENDED[i]}" "${RESTARTS[i]}" "${UP[i]}" "${READY[i]}" \
            "${LAST[i]}" >"state/.new/${NAME[i]}.json"
        any=1
    done
    DIRTY=()
    if [[ $any ]]; then
        mv -f state/.new/*.json state/ || mv -f state/.new/*.json state/
        announce
    fi
}

# Remove characters that JSON does not allow in strings; names of hosts and requests are not trusted.
safe() {
    local text=${1//[^A-Za-z0-9.:_-]/}
    printf '%s' "${text:0:255}"
}

find_address() {
    local text
    HOST=$(safe "${HOSTNAME:-unknown}")
    text=$(ip -4 route get 192.0.2.1 2>/dev/null)
    if [[ $text =~ \ src\ ([0-9.]+) ]]; then
        ADDRESS=${BASH_REMATCH[1]}
    else
        text=$(hostname -I 2>/dev/null)
        ADDRESS=$(safe "${text%% *}")
    fi
    ADDRESS=${ADDRESS:-127.0.0.1}
}

# note TEXT: write a line to script.log, for the site's administrators.
note() {
    printf '%(%Y-%m-%dT%H:%M:%S%z)T %s\n' -1 "$1"
}
