# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Services of the cluster that the pod reaches: REACHES has address, port and target of each. REACH_PROGRAM is
# bridge/relay/reacher.py. Scripts of other pods do not contain this part.

# open_reach: start the program that listens for the containers, before the first of them; POD_MESSAGE is the error.
open_reach() {
    POD_MESSAGE='annotation bridge.vk.io/reach: python3 is not there'
    find_python && mkfifo run/reach.said || return 1
    in_background keep_reach
    REACHER=$!
    disown "$REACHER"
    # its first line, or its end
    local said='no answer'
    IFS= read -r -t 20 said <>run/reach.said
    json_text "annotation bridge.vk.io/reach: $said"
    POD_MESSAGE=$RESULT
    [[ $said == ready ]]
}

keep_reach() {
    exec "$PYTHON" -I -S -c "$REACH_PROGRAM" keep "$$" "$ALONE" "${REACHES[@]}" >run/reach.said 2>&1
}

# tell_inner I: of a runtime whose containers are no descendants of the recorded process.
tell_inner() {
    runtime_pid "$1"
    local pid=$RESULT
    started_at "$pid"
    printf '%s %s\n' "$pid" "$RESULT" >"run/${NAME[$1]}.inner"
}

# reach: what job.sh does for the hub's stream.
reach() {
    find_python || cannot_enter 'reach needs python3 on the machine of the pod'
    exec "$PYTHON" -I -S -c "$REACH_PROGRAM" attach
}
