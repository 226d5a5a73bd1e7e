# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "charliecloud". Each run uses a copy of its image as a directory, in which mount points can be created.

# PLAIN_NAMES: whether an image name without a scheme refers to a registry. FORMAT: the format of a pulled image.
SCHEMES='docker' PLAIN_NAMES=1 FORMAT=tar.gz

runtime_check() {
    [[ $BIN_DIR ]] && PATH=$BIN_DIR:$PATH
    extra_paths
    tool ch-run && plain_folder
}

runtime_start() {
    local i=$1 name=${NAME[$1]}
    image_or_cannot "$i"
    if [[ ! -d run/$name.image ]]; then
        if [[ $IMAGE == /* && -d $IMAGE ]]; then
            copy_image "$name"
        else
            IMAGE=${IMAGE#docker://}
            if [[ $IMAGE != /* ]]; then
                fetch_image "$i" "$PWD/run/$name.tar.gz"
                IMAGE=$PWD/run/$name.tar.gz
            fi
            ch-convert --no-clobber -o dir "$IMAGE" "run/$name.image" >"run/$name.pull" 2>&1 </dev/null ||
                pull_failed "$name" "run/$name.pull"
            rm -f "run/$name.tar.gz"
        fi
    fi
    devices_or_cannot "$i"
    write_lines "$i" "run/$name.env" "'"
    write_foreign "$name"
    export PODBRIDGE_ADDRESS=$ADDRESS OWN_UID=$UID OWN_GID=${GROUPS[0]}
    exec "${SESSION[@]}" unshare -U -r -m -- "$BASH" "$PWD/job.sh" inside "$i"
}

# The storage of ch-image changes with each pull of a name, so a container uses the archive. ch-convert derives the format
# of its output from the file name.
pull_image() {
    ch-image pull "$IMAGE" && ch-convert -i ch-image -o tar "$IMAGE" "$1.tar.gz" && mv -f -- "$1.tar.gz" "$1"
}

# inside I: called by job.sh in a separate namespace, in which it makes volumes read-only: ch-run has no option for it.
inside() {
    local i=$1 name=${NAME[$1]} k source
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    mounts_or_cannot "$i"
    hold_or_cannot "$i"
    # ch-run requires USER; the container gets it only from its pod
    keep_foreign_out "$name" || cannot "$name" 128 'ContainerCannotRun permanent' "$PROBLEM"
    [[ ! ${DIRECTORY[i]} ]] || make_directory "$i" "run/$name.image"
    for k in "${!TO[@]}"; do
        in_image "${TO[k]}" || continue
        without_links "run/$name.image" "${TO[k]}" && in_image "$RESULT" && TO[k]=$RESULT
        if [[ ${ACCESS[k]} == ro ]]; then
            source=$PWD/run/$name.ro.$k
            if [[ -d ${FROM[k]} ]]; then
                mkdir -p "$source"
            else
                : >>"$source"
            fi
            if ! mount --bind -- "${FROM[k]}" "$source" || ! read_only_mount "$source"; then
                cannot "$name" 128 'ContainerCannotRun permanent' "volumes can't be made read-only"
            fi
            FROM[k]=$source
        fi
        [[ -d ${FROM[k]} ]] || place_for_file "run/$name.image" "${TO[k]}" ||
            cannot "$name" 128 ContainerCannotRun "there is no place for a file at ${TO[k]}"
    done
    arguments_of "$i"
    command_of "$i"
    mpi "$i"
    umask 022
    readlink /proc/self/ns/mnt >"run/$name.outside"
    PID[i]=$BASHPID
    (tell_when_in "$name" "${PID[i]}" "$i" &)
    without_host_variables
    become "run/$name.env" "${MPI[@]}" "${SETTER[@]}" ch-run "${WORDS[@]}" "run/$name.image" -- "${COMMAND[@]}"
}

# without_links IMAGE PLACE: sets RESULT to the place without links on the way; fails if ch-run could not be told of it. ch-run
# makes no mount point behind an absolute link, as /var/run is in most images.
without_links() {
    local rest=$2/ part link links=0
    RESULT=''
    while [[ $rest ]]; do
        part=${rest%%/*} rest=${rest#*/}
        if [[ $part == .. ]]; then
            RESULT=${RESULT%/*}
        elif [[ -L $1$RESULT/$part ]]; then
            ((links++ < 40)) && link=$(readlink -- "$1$RESULT/$part") || return 1
            [[ $link != /* ]] || RESULT=''
            rest=$link/$rest
        elif [[ $part && $part != . ]]; then
            RESULT+=/$part
        fi
    done
    [[ $RESULT && $RESULT != *[:,^\\\"[:cntrl:]]* ]]
}

# in_image PLACE: whether a mount point can be made; other directories are the host's. /dev/shm is there already.
in_image() {
    case $1 in
    /dev/shm) ;;
    /dev/* | /proc/* | /sys/*) return 1 ;;
    esac
}

# arguments_of I: sets WORDS to the options of the container, with its mounts.
arguments_of() {
    local i=$1 name=${NAME[$1]} k user=${RUN_AS[$1]%%:*} group=${RUN_AS[$1]#*:}
    WORDS=("${UNSET[@]}" --no-passwd --write --private-tmp --uid="${user:-$OWN_UID}" --gid="${group:-$OWN_GID}")
    has_file "run/$name.image" ch/environment && WORDS+=(--set-env="run/$name.image/ch/environment")
    WORDS+=(--env-no-expand --set-env="run/$name.env" "${OPTIONS[@]}")
    if [[ ${DIRECTORY[i]} ]]; then
        WORDS+=(--cd="${DIRECTORY[i]}")
    elif has_file "run/$name.image" ch/metadata.json; then
        # the image's own, as ch-image writes it
        k=$(json_member cwd "$(<"run/$name.image/ch/metadata.json")")
        [[ $k == /* ]] && WORDS+=(--cd="$k")
    fi
    for k in "${!TO[@]}"; do
        in_image "${TO[k]}" && WORDS+=(--bind="${FROM[k]}:${TO[k]}")
    done
}

# ch-run passes the complete environment on: only the variables of the batch system and of MPI remain in it.
without_host_variables() {
    local k
    for k in $(compgen -e); do
        [[ $k != SLURM_JWT && $k =~ ^($DEVICES|${BATCH//\*/.*})$ ]] && continue
        case $k in
        PATH | _CONDOR_*) ;;
        *) unset -v "$k" 2>/dev/null ;;
        esac
    done
    export USER=podbridge
}

# keep_foreign_out NAME: SETTER, else UNSET for ch-run, removes variables of the host that no shell can unset.
keep_foreign_out() {
    UNSET=(--unset-env=USER)
    set_foreign "$1" '^[A-Za-z_][A-Za-z0-9_]*$' || return
    ((${#SETTER[@]})) || UNSET+=('--unset-env=*[!A-Za-z0-9_]*' '--unset-env=[0-9]*')
}

# is_in_container I: sets RESULT to a process that ch-run has started in the container. To join another one would not
# enter the container.
is_in_container() {
    local program folder
    family "${PID[$1]}"
    for RESULT in "${FAMILY[@]}"; do
        # in this order: a process in another namespace is ch-run, or was started by it
        folder=$(readlink "/proc/$RESULT/ns/mnt")
        program=$(readlink "/proc/$RESULT/exe")
        [[ ! $program || ! $folder || $program == */ch-run || $folder == "$(<"run/${NAME[$1]}.outside")" ]] || return 0
    done
    return 1
} 2>/dev/null

runtime_exec() {
    local name=${NAME[$1]} join
    is_in_container "$1" || return
    join=$RESULT
    shift
    without_host_variables
    keep_foreign_out "$name" || return
    become "run/$name.env" "${SETTER[@]}" ch-run "${UNSET[@]}" --no-passwd --join-pid="$join" --env-no-expand \
        --set-env="run/$name.env" "run/$name.image" -- "$@"
}

# ch-run has its own message for a missing program.
runtime_code() {
    local line
    RESULT=$2
    (($2)) || return 0
    line=$(tail -c 2048 "logs/${NAME[$1]}.log" | tail -n 1)
    [[ $line =~ ^ch-run\[[0-9]+\]:\ error:\ can\'t\ execve ]] && never_ran "$1" "$line"
}

runtime_clean() {
    rm -rf "run/${NAME[$1]}".{env,env.more,foreign.env,pull,asked,progress,outside} "run/${NAME[$1]}".ro.*
    release_mounts "${NAME[$1]}"
    remove_image "${NAME[$1]}"
}
