# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "charliecloud". Each run gets a copy of its image as a folder, in which places for volumes can be made.

runtime_check() {
    [[ $BIN_DIR ]] && PATH=$BIN_DIR:$PATH
    extra_paths
    tool ch-run && plain_folder
}

runtime_start() {
    local i=$1 name=${NAME[$1]}
    image_of "$i"
    if [[ ! -d run/$name.image ]]; then
        if [[ -d $IMAGE ]]; then
            cp -a -- "$IMAGE" "run/$name.image" >"run/$name.pull" 2>&1 || pull_failed "$name" "run/$name.pull"
        else
            IMAGE=${IMAGE#docker://}
            if [[ $IMAGE != /* ]]; then
                ch-image pull "$IMAGE" >"run/$name.pull" 2>&1 </dev/null || pull_failed "$name" "run/$name.pull"
            fi
            ch-convert --no-clobber -o dir "$IMAGE" "run/$name.image" >>"run/$name.pull" 2>&1 </dev/null ||
                pull_failed "$name" "run/$name.pull"
        fi
    fi
    write_lines "$i" "run/$name.env" "'"
    export PODBRIDGE_ADDRESS=$ADDRESS OWN_UID=$UID OWN_GID=${GROUPS[0]}
    exec setsid unshare -U -r -m -- "$BASH" "$PWD/job.sh" inside "$i"
}

# inside I: what job.sh does in a namespace of its own, where read-only volumes are made so: ch-run has no word for it.
inside() {
    local i=$1 name=${NAME[$1]} k source user group
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    host_paths
    mounts_or_cannot "$i"
    user=${RUN_AS[i]%%:*} group=${RUN_AS[i]#*:}
    WORDS=(--no-passwd --write --private-tmp --uid="${user:-$OWN_UID}" --gid="${group:-$OWN_GID}")
    [[ -f run/$name.image/ch/environment ]] && WORDS+=(--set-env="run/$name.image/ch/environment")
    WORDS+=(--env-no-expand --set-env="run/$name.env" "${OPTIONS[@]}")
    [[ ${DIRECTORY[i]} ]] && WORDS+=(--cd="${DIRECTORY[i]}")
    for k in "${!TO[@]}"; do
        case ${TO[k]} in
        # these are the machine's: no place can be made there
        /dev/* | /proc/* | /sys/*) continue ;;
        esac
        source=${FROM[k]}
        if [[ ${ACCESS[k]} == ro ]]; then
            source=$PWD/run/$name.ro.$k
            if [[ -d ${FROM[k]} ]]; then
                mkdir -p "$source"
            else
                : >>"$source"
            fi
            if ! mount --bind -- "${FROM[k]}" "$source" || ! mount -o remount,bind,ro "$source"; then
                cannot "$name" 128 ContainerCannotRun "volumes can't be made read-only"
            fi
        fi
        [[ -d $source ]] || place_for_file "run/$name.image" "${TO[k]}" ||
            cannot "$name" 128 ContainerCannotRun "there is no place for a file at ${TO[k]}"
        WORDS+=(--bind="$source:${TO[k]}")
    done
    command_of "$i"
    mpi "$i"
    umask 022
    go "$name"
    without_host_variables
    become "run/$name.env" "${MPI[@]}" ch-run "${WORDS[@]}" "run/$name.image" -- "${COMMAND[@]}"
}

# ch-run hands the whole environment on: only what the batch system and MPI need stays in it.
without_host_variables() {
    local k
    for k in $(compgen -e); do
        case $k in
        PATH | SLURM_* | PMI* | OMPI_* | CUDA_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES | _CONDOR_*) ;;
        *) unset -v "$k" 2>/dev/null ;;
        esac
    done
}

# place_for_file ROOT PATH: make an empty file in the image, following no link.
place_for_file() {
    local at=$1 rest=${2#/} part
    while [[ $rest == */* ]]; do
        part=${rest%%/*} rest=${rest#*/} at=$at/$part
        [[ -L $at ]] && return 1
        [[ -d $at ]] || mkdir -- "$at" || return 1
    done
    [[ -L $at/$rest ]] && return 1
    [[ -e $at/$rest ]] || : >"$at/$rest"
}

runtime_exec() {
    local name=${NAME[$1]} join=${PID[$1]}
    shift
    without_host_variables
    become "run/$name.env" ch-run --no-passwd --join-pid="$join" --env-no-expand --set-env="run/$name.env" \
        "run/$name.image" -- "$@"
}

runtime_signal() {
    [[ $2 == KILL ]] && kill_session "${PID[$1]}"
    kill -s "$2" -- "${PID[$1]}" 2>/dev/null
}

runtime_pid() { RESULT=${PID[$1]}; }
runtime_code() { RESULT=$2; }
runtime_oom() { cgroup_oom; }

runtime_clean() {
    rm -rf "run/${NAME[$1]}".{env,env.more,pull} "run/${NAME[$1]}".ro.*
    remove_tree "run/${NAME[$1]}.image"
}

runtime_end() { :; }
