# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Probes. PROBE[<container>.<kind>] holds: initial delay, period, timeout, success threshold, failure threshold, grace
# (all times in centiseconds); the function probe_<container>_<kind> probes once.

set_up_probes() {
    local i=$1 kind initial
    for kind in startup liveness readiness; do
        [[ ${PROBE[$i.$kind]-} ]] || continue
        read -r initial _ <<<"${PROBE[$i.$kind]}"
        PROBE_AT[$i.$kind]=$((NOW + initial)) PROBE_GOOD[$i.$kind]=0 PROBE_BAD[$i.$kind]=0 PROBE_PID[$i.$kind]=''
    done
}

stop_probes() {
    local kind
    for kind in startup liveness readiness; do
        if [[ ${PROBE_PID[$1.$kind]-} ]]; then
            end_group "${PROBE_PID[$1.$kind]}"
            PROBE_PID[$1.$kind]=''
        fi
    done
}

probe_all() {
    local i=$1
    if [[ ${UP[i]} == false ]]; then
        [[ ${HOOK[i]} ]] && return
        if [[ ${PROBE[$i.startup]-} ]]; then
            probe "$i" startup
            return
        fi
        is_up "$i"
    fi
    [[ ${PROBE[$i.liveness]-} ]] && probe "$i" liveness
    [[ ${STEP[i]} == running && ${PROBE[$i.readiness]-} ]] && probe "$i" readiness
}

is_up() {
    UP[$1]=true DIRTY[$1]=1
    [[ ${PROBE[$1.readiness]-} ]] || READY[$1]=true
}

# probe I KIND: start a probe that is due, or read its result.
probe() {
    local i=$1 key=$1.$2 code period timeout
    read -r _ period timeout _ <<<"${PROBE[$key]}"
    if [[ ${PROBE_PID[$key]} ]]; then
        if ! kill -0 "${PROBE_PID[$key]}" 2>/dev/null; then
            wait "${PROBE_PID[$key]}"
            code=$?
        elif ((NOW >= PROBE_UNTIL[$key])); then
            end_group "${PROBE_PID[$key]}"
            code=late
        else
            return
        fi
        PROBE_PID[$key]=''
        probed "$i" "$2" "$code"
    elif ((NOW >= PROBE_AT[$key])); then
        PROBE_AT[$key]=$((NOW + period)) PROBE_UNTIL[$key]=$((NOW + timeout))
        in_background with_output "run/${NAME[i]}.$2" "probe_${i}_$2"
        PROBE_PID[$key]=$!
    fi
}

# probed I KIND CODE: count the result, and act when it reaches a threshold.
probed() {
    local i=$1 kind=$2 key=$1.$2 timeout good bad grace why=''
    read -r _ _ timeout good bad grace <<<"${PROBE[$key]}"
    take_output "run/${NAME[i]}.$kind"
    if [[ $3 == 0 ]]; then
        PROBE_BAD[$key]=0 PROBE_GOOD[$key]=$((PROBE_GOOD[$key] + 1))
        ((PROBE_GOOD[$key] >= good)) || return
        if [[ $kind == startup ]]; then
            is_up "$i"
        elif [[ $kind == readiness && ${READY[i]} == false ]]; then
            READY[i]=true DIRTY[i]=1
        fi
        return
    fi
    if [[ $3 == late ]]; then
        why=" after $((timeout / 100)) s without an answer"
    elif [[ ! $RESULT ]]; then
        why=": exit code $3"
    fi
    happened "$i" Unhealthy "${kind^} probe failed$why$RESULT"
    PROBE_GOOD[$key]=0 PROBE_BAD[$key]=$((PROBE_BAD[$key] + 1))
    ((PROBE_BAD[$key] >= bad)) || return
    if [[ $kind == readiness ]]; then
        if [[ ${READY[i]} == true ]]; then
            READY[i]=false DIRTY[i]=1
        fi
    else
        note "${NAME[i]}: $kind probe failed"
        why=''
        begins_again "$i" && why=', will be restarted'
        ask_to_end "$i" "$grace" Unhealthy "Container ${NAME[i]} failed $kind probe$why"
    fi
}

# probe_tcp HOST PORT: the connection is descriptor 4.
probe_tcp() {
    { exec 4<>"/dev/tcp/$1/$2"; } 2>/dev/null && return
    printf 'no connection to %s port %s\n' "$1" "$2"
    return 1
}

# probe_http HOST PORT LINE...: any status from 200 to 399 is a success.
probe_http() {
    local line
    probe_tcp "$1" "$2" || return 1
    printf '%s\r\n' "${@:3}" '' >&4
    IFS= read -r line <&4 || line=''
    if [[ $line =~ ^HTTP/[0-9.]+\ ([0-9]+) ]]; then
        has_succeeded "${BASH_REMATCH[1]}"
        return
    fi
    printf 'the answer is not HTTP\n'
    return 1
}

# has_succeeded CODE: of an HTTP answer.
has_succeeded() {
    [[ $1 == [23][0-9][0-9] ]] && return
    printf 'HTTP probe failed with statuscode: %s\n' "$1"
    return 1
}

# probe_https URL HEADER...: the certificate is not looked at, as by a kubelet. Headers go through a file: no word of them is in a process list.
probe_https() {
    local url=$1 line code
    shift
    # the path as it stands, as with a kubelet: curl would expand [] and {}, and resolve /../
    code=$(for line in "$@"; do printf 'header = "%s"\n' "$line"; done |
        curl --config - --globoff --path-as-is --silent --show-error --insecure --noproxy '*' --max-time 600 --output /dev/null --write-out '%{http_code}' -- "$url")
    [[ $code != 000 ]] && has_succeeded "$code"
}

# can_probe WAY: whether the programs that it needs exist.
can_probe() {
    case $1 in
    https) type -P curl ;;
    grpc) speaks_http2 || type -P grpc_health_probe ;;
    esac >/dev/null
}

# Whether curl can use HTTP/2 without TLS: version 7.49 or newer, built with HTTP2.
speaks_http2() {
    local text
    text=$(curl --version 2>/dev/null) || return 1
    [[ $text =~ ^curl\ ([0-9]+)\.([0-9]+) ]] || return 1
    ((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2] >= 7049)) && [[ $text\  == *[[:space:]]HTTP2[[:space:]]* ]]
}

# probe_grpc HOST:PORT SERVICE: grpc.health.v1.Health/Check says SERVING (a message 08 01) and ends with status 0.
probe_grpc() {
    local answer
    if ! speaks_http2; then
        grpc_health_probe -addr="$1" -service="$2"
        return
    fi
    answer=$(grpc_request "$2" |
        curl --http2-prior-knowledge --silent --noproxy '*' --max-time 600 --include --data-binary @- \
            --header 'content-type: application/grpc' --header 'te: trailers' --user-agent kube-probe/1 \
            -- "http://$1/grpc.health.v1.Health/Check" | od -A n -v -t x1 | tr -d ' \n')
    # an empty line, the message's frame, and "grpc-status: 0" on a line of its own
    [[ $answer == *0d0a0d0a00000000020801*677270632d7374617475733a20300d0a* ]]
}

# grpc_request SERVICE: a frame (not compressed, length in four bytes) that holds the service's name as field 1.
grpc_request() {
    local size=${#1} head=''
    # protobuf writes a length in groups of seven bits, the lowest first
    if ((size > 127)); then
        printf -v head '\\x0a\\x%02x\\x%02x' $((size & 127 | 128)) $((size >> 7))
        size=$((size + 3))
    elif ((size)); then
        printf -v head '\\x0a\\x%02x' "$size"
        size=$((size + 2))
    fi
    printf -v size '\\x%02x\\x%02x' $((size >> 8)) $((size & 255))
    printf '%b%s' "\\0\\0\\0$size$head" "$1"
}
