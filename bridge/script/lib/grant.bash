# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The wait of a pod that is queued at several pools: its script starts nothing before the hub grants it its own ticket.

GRANT_WAIT=''

# await_grant: wait at most GRANT_WAIT centiseconds for the ticket in control/grant; without GRANT_WAIT, do not wait.
# The decision is in state/pod.json before anything follows from it. Without that, nothing has begun, so the ticket stays
# in the record.
await_grant() {
    local until granted
    if [[ $GRANT_WAIT ]]; then
        read -r TICKET </proc/sys/kernel/random/uuid || return 1
        clock
        until=$((NOW + GRANT_WAIT))
        pod_state Asking
        while :; do
            list control
            [[ ! $STOP_BY && $NAMES != *' stop '* ]] || return 1
            granted=''
            [[ $NAMES != *' grant '* ]] || { read -r granted <control/grant; } 2>/dev/null
            [[ $granted != "$TICKET" ]] || break
            ((NOW < until)) || return 1
            nap
            clock
            flush
        done
    fi
    active
    while [[ $GRANT_WAIT && $POD_STATE ]]; do
        list control
        if [[ $STOP_BY || $NAMES == *' stop '* ]]; then
            TICKET=$granted
            return 1
        fi
        nap
        flush
    done
}

# give_back: end without having started anything. The site reports the job as unused.
give_back() {
    note 'no grant: another place may run the pod'
    POD_MESSAGE='the job had no grant, so it started nothing'
    [[ -e control/stop || $STOP_BY ]] || POD_REASON=NoGrant
    [[ ! -e control/stop ]] || POD_REASON=Deleted
    POD_REASON=${POD_REASON:-Terminated} STOPPING=1 STOP_AT=$NOW FORCED=Failed
    STAGE=end
}
