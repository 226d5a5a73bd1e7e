# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "apptainer" or "singularity".

# PLAIN_NAMES: whether an image name without a scheme refers to a registry. FORMAT: the format of a pulled image.
SCHEMES='docker oras library shub https http' PLAIN_NAMES='' FORMAT=sif

runtime_check() {
    extra_paths
    if [[ $CACHE_DIR ]]; then
        export APPTAINER_CACHEDIR=$CACHE_DIR SINGULARITY_CACHEDIR=$CACHE_DIR
    fi
    if [[ -e run/docker/config.json ]]; then
        export DOCKER_CONFIG=$PWD/run/docker REGISTRY_AUTH_FILE=$PWD/run/docker/config.json
        export APPTAINER_AUTH_FILE=$REGISTRY_AUTH_FILE SINGULARITY_AUTH_FILE=$REGISTRY_AUTH_FILE
    fi
    tool "$RUNTIME" && plain_folder
}

# arguments_of I: sets WORDS to the arguments up to the image, with the mounts of the container.
arguments_of() {
    local i=$1 k covered=''
    WORDS=("${OPTIONS[@]}" "${GPU_WORDS[@]}")
    [[ $WRITABLE_TMPFS && ! ${READONLY_ROOT[i]} ]] && WORDS+=(--writable-tmpfs)
    # the default is the user's home directory, which does not exist in the image
    WORDS+=(--pwd "${DIRECTORY[i]:-/}")
    [[ ${DIRECTORY[i]} ]] && make_directory "$i"
    LINKS=()
    for k in "${!TO[@]}"; do
        if [[ ${TO[k]} == /dev/* && -f ${FROM[k]} ]]; then
            # its /dev is new: it accepts links, but no mounts
            WORDS+=(--bind "${FROM[k]}:/.podbridge/$k:${ACCESS[k]}")
            LINKS+=("/.podbridge/$k" "${TO[k]}")
            continue
        fi
        WORDS+=(--bind "${FROM[k]}:${TO[k]}:${ACCESS[k]}")
        covered+=" ${TO[k]} "
    done
    for ((k = 0; k < ${#FUSED[@]}; k += 3)); do
        mounted_by_runtime "run/fuse/${NAME[i]}.$k" "${FUSED[@]:k:3}"
    done
    for k in /tmp /var/tmp; do
        # private to the container, and shared with its probes
        if [[ $covered != *" $k "* ]]; then
            mkdir -p "work/${NAME[i]}$k"
            WORDS+=(--bind "$PWD/work/${NAME[i]}$k:$k:rw")
        fi
    done
}

runtime_start() {
    local i=$1 name=${NAME[$1]}
    may_run_as "$i" "$FAKEROOT_USER"
    rm -rf "work/$name"
    mkdir -p "work/$name"
    image_or_cannot "$i"
    fetch "$i"
    mounts_or_cannot "$i"
    BEFORE=(setsid)
    ((${#SHARED[@]} == 0)) || into_namespace "$i" start
    launch "$i" start
}

# A command for a running container runs in a second container with the same image, volumes, /tmp and variables.
runtime_exec() {
    image_of "$1" || return
    [[ -e run/${NAME[$1]}.sif ]] && IMAGE=$PWD/run/${NAME[$1]}.sif
    mounts_of "$1" || return
    BEFORE=()
    ((${#SHARED[@]} == 0)) || into_namespace "$1" exec "${@:2}"
    launch "$1" exec "${@:2}"
}

# inside I start|exec [WORD...]: called by job.sh in a separate namespace, in which it mounts files that others may change.
inside() {
    local i=$1
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    host_paths
    image_of "$i" || return
    [[ -e run/${NAME[i]}.sif ]] && IMAGE=$PWD/run/${NAME[i]}.sif
    mounts_of "$i" || return
    if [[ $2 == exec ]]; then
        hold_mounts "${NAME[i]}" || return
    else
        hold_or_cannot "$i"
    fi
    leave_namespace
    # set-user-id programs give no rights in such a namespace
    [[ " ${OPTIONS[*]} " == *' --userns '* ]] || OPTIONS=(--userns "${OPTIONS[@]}")
    launch "$@"
}

# launch I start|exec [WORD...]: replace this process by the container, or by a command beside it.
launch() {
    local i=$1 name=${NAME[$1]}
    if [[ $2 == exec ]]; then
        pass_foreign "$name" || return
        arguments_of "$i"
        exec "${BEFORE[@]}" "${SETTER[@]}" "$RUNTIME" exec "${WORDS[@]}" --env-file "run/$name.env" "$IMAGE" "${@:3}"
    fi
    devices_or_cannot "$i"
    PODBRIDGE_ADDRESS=$ADDRESS write_exports "$i" "run/$name.env"
    write_foreign "$name"
    pass_foreign "$name" || cannot "$name" 128 ContainerCannotRun "$PROBLEM"
    arguments_of "$i"
    command_of "$i"
    if [[ ${#LINKS[@]} -gt 0 && ${HAS_COMMAND[i]} ]] && has_shell; then
        # shellcheck disable=SC2016
        COMMAND=("${IMAGE_SHELL[@]}" -c 'ln -s "$1" "$2" 2>/dev/null; shift 2; exec "$@"' sh "${LINKS[@]:0:2}"
            "${COMMAND[@]}")
    fi
    # of each rank: a clean environment accepts variables with these names
    mpi "$i" 'export "APPTAINERENV_$name=${!name}" "SINGULARITYENV_$name=${!name}"'
    umask 022
    go "$name"
    exec "${BEFORE[@]}" "${MPI[@]}" "${SETTER[@]}" "$RUNTIME" "$(verb "$i")" "${WORDS[@]}" --env-file "run/$name.env" \
        "$IMAGE" "${COMMAND[@]}"
}

# Variables that enter the container, or that apptainer itself reads, although the environment is cleaned.
KEPT='^(PATH|HOME|LD_LIBRARY_PATH|LANG|TERM|(?i:(https?|no|all|ftp)_proxy)|(APPTAINER|SINGULARITY)(ENV)?_.*)$'

# pass_foreign NAME: a name that no shell can assign reaches a container only through apptainer's own environment, and only
# if apptainer does not clean it. So SETTER cleans the environment, and OPTIONS have the other effects of --cleanenv.
pass_foreign() {
    local word options=() cleaned=''
    SETTER=()
    [[ -s run/$1.foreign.env ]] || return 0
    [[ ! ${APPTAINER_CONTAINALL-}${SINGULARITY_CONTAINALL-} ]] || OPTIONS+=(--containall)
    [[ ! ${APPTAINER_CLEANENV-}${SINGULARITY_CLEANENV-} ]] || OPTIONS+=(--cleanenv)
    for word in "${OPTIONS[@]}"; do
        case $word in
        --cleanenv | -e) cleaned=1 ;;
        --containall | -C) cleaned=1 options+=(--contain --pid --ipc) ;;
        *) options+=("$word") ;;
        esac
    done
    OPTIONS=("${options[@]}")
    unset -v {APPTAINER,SINGULARITY}_{CONTAINALL,CLEANENV}
    export APPTAINER_TMPDIR=${APPTAINER_TMPDIR:-${TMPDIR:-/tmp}} SINGULARITY_TMPDIR=${SINGULARITY_TMPDIR:-${TMPDIR:-/tmp}}
    if [[ $cleaned ]]; then
        export LANG=C # what it sets itself
        set_foreign "$1" "$KEPT"
    else
        set_foreign "$1"
    fi
}

# mounted_by_runtime FILE VOLUME SUBPATH PLACE: the runtime starts a script that mounts a FUSE file system by a descriptor.
mounted_by_runtime() {
    {
        # shellcheck disable=SC2016
        printf 'for MOUNT_POINT; do case $MOUNT_POINT in /dev/fd/*) break ;; esac; done\n'
        printf "SUB_PATH='%s'\nexport MOUNT_POINT SUB_PATH\n" "${3//\'/"'\\''"}"
        cat "run/fuse/$2"
    } >"$1"
    if [[ $FUSE_MODE == host ]]; then
        WORDS+=(--fusemount "host:/bin/bash $PWD/$1 $4")
    else
        WORDS+=(--bind "$PWD/$1:/.podbridge/${1##*/}:ro" --fusemount "container:/bin/sh /.podbridge/${1##*/} $4")
    fi
}

# has_shell: whether the image has a shell, IMAGE_SHELL, that passes all variables on; most images are tested once.
has_shell() {
    local text=:
    IMAGE_SHELL=(/bin/sh)
    if ((${#SETTER[@]})); then
        IMAGE_SHELL=(/bin/bash -p) text='((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404))'
    elif [[ -d $IMAGE ]]; then
        [[ -x $IMAGE/bin/sh || -L $IMAGE/bin/sh ]]
        return
    fi
    "${LEAVE[@]}" "${SETTER[@]}" "$RUNTIME" exec "${OPTIONS[@]}" "$IMAGE" "${IMAGE_SHELL[@]}" -c "$text" >/dev/null 2>&1 </dev/null
}

verb() {
    if [[ ${HAS_COMMAND[$1]} ]]; then
        printf exec
    else
        printf run
    fi
}

# fetch I: pulls an image to a file first, so that a failed pull can be distinguished from a failed program.
fetch() {
    case $IMAGE in
    docker://* | oras://* | library://* | shub://* | https://* | http://*) ;;
    *) return ;;
    esac
    fetch_image "$1" "$PWD/run/${NAME[$1]}.sif"
    IMAGE=$PWD/run/${NAME[$1]}.sif
}

# A pull unpacks images in a separate directory, which is removed even if the pull is killed.
pull_image() {
    local code
    if make_area "run/$2.build" "${APPTAINER_TMPDIR:-${SINGULARITY_TMPDIR:-${TMPDIR:-/tmp}}}"; then
        APPTAINER_TMPDIR=$(<"run/$2.build")
        export APPTAINER_TMPDIR SINGULARITY_TMPDIR=$APPTAINER_TMPDIR
    fi
    "$RUNTIME" pull --force "$1" "$IMAGE"
    code=$?
    remove_build "$2"
    return "$code"
}

remove_build() {
    [[ ! -s run/$1.build ]] || remove_tree "$(<"run/$1.build")"
    rm -f "run/$1.build"
}

runtime_clean() {
    rm -f "run/${NAME[$1]}".{env,foreign.env,pull,asked,progress}
    remove_build "${NAME[$1]}"
    release_mounts "${NAME[$1]}"
}
runtime_end() { rm -f run/*.sif; rm -rf work; }
