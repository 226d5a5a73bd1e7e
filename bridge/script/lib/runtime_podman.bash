# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "podman", rootless. The container is created first and then started, to know which of the two failed.

# PLAIN_NAMES: whether an image name without a scheme refers to a registry.
SCHEMES='docker' PLAIN_NAMES=1 IMAGE_USER=1

runtime_check() {
    extra_paths
    [[ -e run/docker/config.json ]] && export REGISTRY_AUTH_FILE=$PWD/run/docker/config.json
    tool "$RUNTIME" && plain_folder
}

container_name() { RESULT=podbridge-${PWD##*/}-${NAME[$1]}; }

# ask I FORMAT: podman inspect of the container.
ask() {
    container_name "$1"
    RESULT=$("$RUNTIME" inspect --format "$2" "$RESULT" 2>/dev/null)
}

# Root's podman gives any user; another one's gives those that podman's user namespace has on this machine.
runtime_user() {
    ((UID)) || return 0
    gives uid runAsUser "${RUN_AS[$1]%%:*}" && gives gid runAsGroup "${RUN_AS[$1]#*:}"
}

# gives uid|gid FIELD ID: whether the namespace has the id. Where podman does not say it, the start of the container does.
gives() {
    local first length last=-1
    [[ $3 ]] || return 0
    while read -r first _ length; do
        ((first + length - 1 <= last)) || last=$((first + length - 1))
    done < <("$RUNTIME" unshare cat "/proc/self/$1_map" 2>/dev/null)
    ((last < 0 || $3 <= last)) && return
    FIELD=$2 PROBLEM="$3 is not allowed; allowed: 0 to $last, by /etc/sub$1 of this machine"
    return 1
}

runtime_start() {
    local i=$1 name=${NAME[$1]} k
    container_name "$i"
    "$RUNTIME" rm --force --ignore --time 0 "$RESULT" >/dev/null 2>&1
    image_or_cannot "$i"
    fetch "$i"
    if [[ ${NON_ROOT[i]} ]]; then
        k=${RUN_AS[i]%%:*}
        [[ $k ]] || k=$("$RUNTIME" image inspect --format '{{.Config.User}}' "$IMAGE" 2>/dev/null)
        case ${k%%:*} in
        '' | root | 0) cannot "$name" 128 'CreateContainerConfigError permanent' 'runAsNonRoot: the user of the container is root' ;;
        esac
    fi
    mounts_or_cannot "$i"
    if ((${#SHARED[@]})); then
        "$RUNTIME" unshare "$BASH" "$PWD/job.sh" inside hold "$i" >"run/$name.pull" 2>&1 </dev/null ||
            cannot "$name" 128 CreateContainerConfigError "$NOT_HELD"
    fi
    devices_or_cannot "$i"
    add_devices "$i"
    write_lines "$i" "run/$name.env" ''
    write_foreign "$name"
    set_foreign "$name" || cannot "$name" 128 'ContainerCannotRun permanent' "$PROBLEM"
    arguments_of "$i"
    umask 022
    (become "run/$name.env" "${SETTER[@]}" "$RUNTIME" create "${WORDS[@]}" "$IMAGE" "${COMMAND[@]}") >/dev/null 2>"run/$name.pull" </dev/null ||
        cannot "$name" 128 ContainerCannotRun "$(tail -n 5 "run/$name.pull" | head -c 2000)"
    if [[ ${DIRECTORY[i]} ]]; then
        "$RUNTIME" unshare "$BASH" "$PWD/job.sh" inside "$RESULT" "$i" >/dev/null 2>&1 </dev/null
    fi
    (tell_when_in "$name" "$BASHPID" "$i" &)
    container_name "$i"
    # with --attach, podman passes signals on to the container (--sig-proxy)
    exec "${SESSION[@]}" "$RUNTIME" start --attach ${CONSOLE[i]:+--interactive} "$RESULT"
}

# arguments_of I: sets WORDS to the options of the container, with its mounts, and COMMAND to what stands behind the image.
arguments_of() {
    local i=$1 k
    container_name "$i"
    WORDS=(--name "$RESULT" --pull never --network "$NETWORK" --init=false --log-driver none
        --env-file "run/${NAME[i]}.env" "${OPTIONS[@]}" "${DEVICE_WORDS[@]}")
    [[ $IMAGE != /* ]] || WORDS+=(--rootfs)
    for k in "${MORE[@]}"; do
        WORDS+=(--env "$k")
    done
    for k in "${!TO[@]}"; do
        WORDS+=(--volume "${FROM[k]}:${TO[k]}:${ACCESS[k]}")
    done
    # by default, podman makes /tmp, /run and others writable beside --read-only; a kubelet does not
    [[ ${READONLY_ROOT[i]} ]] && WORDS+=(--read-only --read-only-tmpfs=false)
    [[ ! ${CONSOLE[i]-} ]] || WORDS+=(--interactive ${TERMINAL[i]:+--tty})
    [[ ${DIRECTORY[i]} ]] && WORDS+=(--workdir "${DIRECTORY[i]}")
    [[ ${RUN_AS[i]} != : ]] && WORDS+=(--user "${RUN_AS[i]%:}")
    command_of "$i"
    if [[ ${HAS_COMMAND[i]} ]]; then
        WORDS+=(--entrypoint "${COMMAND[0]}")
        COMMAND=("${COMMAND[@]:1}")
    fi
}

# add_devices I: sets DEVICE_WORDS. The container sees only these devices, so their numbers start at 0.
add_devices() {
    local device name number=0 nodes=() counted=''
    DEVICE_WORDS=()
    [[ $GPU_RESOURCE != amd.com/gpu ]] || render_nodes
    for device in "${GIVEN[@]}"; do
        if [[ $GPU_RESOURCE == amd.com/gpu ]]; then
            [[ $device =~ ^[0-9]+$ && ${nodes[device]-} ]] ||
                cannot "${NAME[$1]}" 128 'CreateContainerConfigError permanent' "this machine has no device file of GPU $device"
            ((number)) || DEVICE_WORDS+=(--device /dev/kfd)
            DEVICE_WORDS+=(--device "${nodes[device]}")
        else
            DEVICE_WORDS+=(--device "${GPU_RESOURCE}=$device")
        fi
        counted+=,$number
        number=$((number + 1))
    done
    for name in ${DEVICES//|/ }; do
        [[ ${!name-} =~ ^[0-9,]+$ ]] && export "$name=${counted#,}"
    done
}

# render_nodes: sets nodes to the device files of AMD's GPUs, in the order of their numbers.
render_nodes() {
    local folder key value number=0
    folder=${PODBRIDGE_KFD_NODES:-/sys/class/kfd/kfd/topology/nodes}
    while [[ -e $folder/$number ]]; do
        while read -r key value; do
            [[ $key == drm_render_minor && $value != 0 ]] && nodes+=("/dev/dri/renderD$value")
        done <"$folder/$number/properties"
        number=$((number + 1))
    done
}

# fetch I: set IMAGE to an image that podman has: a name, or a directory of this container.
fetch() {
    local i=$1 name=${NAME[$1]}
    IMAGE=${IMAGE#docker://}
    if [[ $IMAGE == /* && -d $IMAGE ]]; then
        copy_image "$name"
        IMAGE=$PWD/run/$name.image
    elif [[ $IMAGE == /* ]]; then
        IMAGE=$("$RUNTIME" load --quiet --input "$IMAGE" 2>"run/$name.pull" </dev/null) || pull_failed "$name" "run/$name.pull"
        IMAGE=${IMAGE##*: }
        IMAGE=${IMAGE%%,*}
    else
        fetch_by_name "$i"
    fi
}

# fetch_by_name I: podman's own storage is the cache, of one user on one machine. Podman checks a login only when it pulls,
# so PULLED records each pulled image with its logins.
fetch_by_name() {
    local i=$1 name=${NAME[$1]} key
    PULLED=''
    [[ ! -d $CACHE ]] || PULLED=$CACHE/podman/$HOST
    : >"run/$name.asked"
    [[ ${PULL[i]} != Always ]] && in_storage "$i" && return
    [[ ${PULL[i]} != Never ]] || never_pulled "$name"
    key=$(printf '%s\0' "$HOST" "$IMAGE" "${LOGIN[i]}" | sha256sum)
    key=${key%% *}
    if [[ $PULLED ]] && lock_key "$name" "$key"; then
        if ! { [[ ${PULL[i]} != Always || $PULLED/$key -nt run/$name.asked ]] && in_storage "$i"; }; then
            pull_by_name "$i" "$key"
        fi
        unlock_key
    else
        pull_by_name "$i" ''
    fi
}

# in_storage I: whether the image is in the storage: loaded by the site's user, or pulled with the same login or none.
in_storage() {
    local id
    id=$("$RUNTIME" image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null) && [[ $id =~ ^[0-9a-f]{64}$ ]] || return
    [[ ! -d $PULLED/$id || -e $PULLED/$id/none || -e $PULLED/$id/${LOGIN[$1]:-none} ]] || return
    # the name may refer to another image a moment later
    IMAGE=$id
}

# pull_by_name I KEY
pull_by_name() {
    local name=${NAME[$1]} id=''
    : >"run/$name.began"
    pull_image_to "$name" "run/$name.id"
    read -r id <"run/$name.id"
    [[ $id =~ ^[0-9a-f]{64}$ ]] || return
    IMAGE=$id
    [[ $PULLED ]] || return
    mkdir -p -- "$PULLED/$id" && : >"$PULLED/$id/${LOGIN[$1]:-none}"
    [[ ! $2 ]] || mv -f "run/$name.began" "$PULLED/$2"
}

pull_image() { "$RUNTIME" pull --quiet "$IMAGE" >"$1"; }

# inside CONTAINER I: called by job.sh in podman's namespaces, in which the container's root is visible. "inside hold I"
# mounts there what others may change, for podman create, and "inside release I" unmounts it.
inside() {
    local root
    mounts_of "$2"
    case $1 in
    hold)
        unmount_held "$2"
        hold_mounts
        return
        ;;
    release)
        unmount_held "$2"
        return
        ;;
    esac
    root=$("$RUNTIME" mount "$1") || return
    make_directory "$2" "$root"
    "$RUNTIME" unmount "$1"
}

# podman runs no command in a container that has not started yet.
is_in_container() {
    ask "$1" '{{.State.Status}}'
    case $RESULT in
    '' | configured | created | initialized) return 1 ;;
    esac
    [[ ! $REACHER ]] || tell_inner "$1"
}

runtime_exec() {
    container_name "$1"
    exec "$RUNTIME" exec "$RESULT" "${@:2}"
}

runtime_session() {
    container_name "$1"
    exec "$RUNTIME" exec --interactive ${TTY:+--tty} "$RESULT" "${@:2}"
}

runtime_signal() {
    container_name "$1"
    if [[ $2 == KILL ]]; then
        in_background kill_container "$1"
    else
        kill -s "$2" -- "${PID[$1]}" 2>/dev/null
    fi
}

kill_container() { "$RUNTIME" kill --signal KILL "$RESULT" || kill -s KILL -- "${PID[$1]}"; }

# The container's first process, not one of podman's own.
runtime_pid() {
    RESULT=${INNER[$1]-}
    if [[ ! $RESULT || ! -e /proc/$RESULT ]]; then
        ask "$1" '{{.State.Pid}}'
        [[ $RESULT == 0 ]] && RESULT=''
        INNER[$1]=$RESULT
    fi
}

# 125 is podman's own code, if the container never ran.
runtime_code() {
    if (($2 == 125)) && [[ ! -s run/${NAME[$1]}.why ]]; then
        ask "$1" '{{.State.StartedAt}}'
        # Go's zero time: the container was never started
        if [[ $RESULT == 0001-* ]]; then
            never_ran "$1" "$(tail -n 1 "logs/${NAME[$1]}.log")"
            return
        fi
    fi
    RESULT=$2
}

runtime_oom() {
    ask "$1" '{{.State.OOMKilled}}'
    [[ $RESULT == true ]] || cgroup_oom
}

# unmount_held I: runs in podman's namespaces.
unmount_held() {
    local held
    for held in "run/${NAME[$1]}".held.*; do
        [[ -L $held || ! -e $held ]] || umount -l -- "$held"
    done
} 2>/dev/null

runtime_clean() {
    INNER[$1]=''
    rm -f "run/${NAME[$1]}".{env,env.more,foreign.env,pull,asked,began,id,progress}
    container_name "$1"
    "$RUNTIME" rm --force --ignore --time 0 "$RESULT" >/dev/null 2>&1
    if compgen -G "run/${NAME[$1]}.held.*" >/dev/null; then
        mounts_of "$1"
        ((${#SHARED[@]} == 0)) || "$RUNTIME" unshare "$BASH" "$PWD/job.sh" inside release "$1" >/dev/null 2>&1 </dev/null
        release_mounts "${NAME[$1]}"
    fi
    remove_image "${NAME[$1]}"
}

# Files of users that exist only in the container.
runtime_remove() { "$RUNTIME" unshare rm -rf -- "$1"; }
