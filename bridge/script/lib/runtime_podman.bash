# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "podman", rootless.

runtime_check() {
    extra_paths
    [[ -e run/docker/config.json ]] && export REGISTRY_AUTH_FILE=$PWD/run/docker/config.json
    tool "$RUNTIME" && plain_folder
}

container_name() { RESULT=podbridge-${PWD##*/}-${NAME[$1]}; }

runtime_start() {
    local i=$1 name=${NAME[$1]} k words
    container_name "$i"
    "$RUNTIME" rm --force --ignore --time 0 "$RESULT" >/dev/null 2>&1
    image_of "$i"
    IMAGE=${IMAGE#docker://}
    if [[ $IMAGE == /* ]]; then
        words=(--rootfs)
    elif [[ ${ALWAYS_PULL[i]} ]] || ! "$RUNTIME" image exists "$IMAGE"; then
        "$RUNTIME" pull --quiet "$IMAGE" >"run/$name.pull" 2>&1 </dev/null || pull_failed "$name" "run/$name.pull"
    fi
    mounts_or_cannot "$i"
    write_lines "$i" "run/$name.env" ''
    words=(run --name "$RESULT" --rm=false --replace --pull never --network "$NETWORK" --init=false --log-driver none
        --cidfile "run/$name.cid" --env-file "run/$name.env" "${OPTIONS[@]}" "${words[@]}")
    for k in "${MORE[@]}"; do
        words+=(--env "$k")
    done
    for k in "${!TO[@]}"; do
        words+=(--volume "${FROM[k]}:${TO[k]}:${ACCESS[k]}")
    done
    [[ ${READONLY_ROOT[i]} ]] && words+=(--read-only --read-only-tmpfs=false)
    [[ ${DIRECTORY[i]} ]] && words+=(--workdir "${DIRECTORY[i]}")
    [[ ${RUN_AS[i]} != : ]] && words+=(--user "${RUN_AS[i]%:}")
    command_of "$i"
    if [[ ${HAS_COMMAND[i]} ]]; then
        words+=(--entrypoint "${COMMAND[0]}")
        COMMAND=("${COMMAND[@]:1}")
    fi
    rm -f "run/$name.cid"
    umask 022
    go "$name"
    become "run/$name.env" setsid "$RUNTIME" "${words[@]}" "$IMAGE" "${COMMAND[@]}"
}

runtime_exec() {
    container_name "$1"
    exec "$RUNTIME" exec "$RESULT" "${@:2}"
}

runtime_signal() {
    container_name "$1"
    if [[ $2 == KILL ]]; then
        in_background "$RUNTIME" kill --signal KILL "$RESULT"
        return
    fi
    kill -s "$2" -- "${PID[$1]}" 2>/dev/null
}

# The container's first process: podman's own are not counted.
runtime_pid() {
    RESULT=${INNER[$1]-}
    if [[ ! $RESULT || ! -e /proc/$RESULT ]]; then
        container_name "$1"
        RESULT=$("$RUNTIME" inspect --format '{{.State.Pid}}' "$RESULT" 2>/dev/null)
        [[ $RESULT == 0 ]] && RESULT=''
        INNER[$1]=$RESULT
    fi
}

runtime_code() { RESULT=$2; }

runtime_oom() {
    container_name "$1"
    [[ $("$RUNTIME" inspect --format '{{.State.OOMKilled}}' "$RESULT" 2>/dev/null) == true ]] || cgroup_oom
}

runtime_clean() {
    INNER[$1]=''
    rm -f "run/${NAME[$1]}".{env,env.more,pull,cid}
    container_name "$1"
    "$RUNTIME" rm --force --ignore --time 0 "$RESULT" >/dev/null 2>&1
}

runtime_end() { :; }
