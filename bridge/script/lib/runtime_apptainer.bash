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
    tool "$RUNTIME" && plain_folder || return
    [[ ! $WRITABLE_TMPFS || -e run/root.area ]] || find_root_area
}

# find_root_area: run/root.area gets a folder for what containers change in their root file systems, or nothing: the machine
# has no overlays for users, or none on this file system (NFS), and then apptainer has room for some MiB in memory.
find_root_area() {
    local area
    : >run/root.area
    [[ $ROOT_FILESYSTEM == disk ]] || return 0
    mkdir -p run/no-image/{dev,proc,sys,tmp}
    for area in "$SCRATCH_AREA" "$PWD/work" "${TMPDIR:-/tmp}"; do
        # not where pods could replace it by a link
        [[ -d $area && ! ($SCRATCH_HELD && $area == "$SCRATCH_AREA") ]] || continue
        is_plain "$(readlink -e -- "$area")" || continue
        make_area run/root.area "$area" || continue
        new_root check
        # that the program is missing is found out in the container
        [[ $("$RUNTIME" --silent exec "${OPTIONS[@]}" "${ROOT_WORDS[@]}" "$PWD/run/no-image" /podbridge-check 2>&1) == \
            *'stat /podbridge-check'* ]] && return
        remove_tree "$(<run/root.area)"
        : >run/root.area
    done
    note 'no overlay on a disk: containers can change some MiB of their root file systems'
} </dev/null

# new_root NAME: ROOT_WORDS are the options for a root file system that a container may change; it is as new.
new_root() {
    ROOT_WORDS=(--writable-tmpfs)
    [[ -s run/root.area ]] || return 0
    local root
    root=$(<run/root.area)/$1
    [[ ! -e $root ]] || remove_tree "$root"
    mkdir -p "$root" && ROOT_WORDS=(--overlay "$root")
}

# arguments_of I: sets WORDS to the arguments up to the image, with the mounts of the container. An overlay can be mounted
# once: a command beside the container has a root file system of its own, as each process of MPI.
arguments_of() {
    local i=$1 k covered=$'\n'
    WORDS=("${OPTIONS[@]}" "${GPU_WORDS[@]}")
    if [[ $WRITABLE_TMPFS && ! ${READONLY_ROOT[i]} ]]; then
        ROOT_WORDS=(--writable-tmpfs)
        [[ $2 == exec || ${MPI-} ]] || new_root "${NAME[i]}"
        WORDS+=("${ROOT_WORDS[@]}")
    fi
    read_image_config "${NAME[i]}"
    if [[ $IMAGE_DIRECTORY == missing:* ]]; then
        # docker would make it, and a mount does
        IMAGE_DIRECTORY=${IMAGE_DIRECTORY#missing:}
        is_mounted "$IMAGE_DIRECTORY" || IMAGE_DIRECTORY=/
    fi
    # the default is the user's home directory, which does not exist in the image
    WORDS+=(--pwd "${DIRECTORY[i]:-${IMAGE_DIRECTORY:-/}}")
    variables_of "$i"
    for ((k = 0; k < ${#VARIABLES[@]}; k += 2)); do
        [[ ${VARIABLES[k]} != HOME ]] || IMAGE_HOME=${VARIABLES[k + 1]}
    done
    # apptainer takes HOME from this option alone; with --no-home it mounts nothing there
    if [[ $IMAGE_HOME == /* && $IMAGE_HOME != *:* ]]; then
        mkdir -p "work/${NAME[i]}/home"
        WORDS+=(--no-home --home "$PWD/work/${NAME[i]}/home:$IMAGE_HOME")
    fi
    [[ ${DIRECTORY[i]} ]] && make_directory "$i"
    LINKS=()
    for k in "${!TO[@]}"; do
        case ${TO[k]} in
        /dev/shm | /dev/mqueue | /dev/pts) ;;
        /dev/*)
            # its /dev is new: it accepts links, but mounts only at these places
            WORDS+=(--bind "${FROM[k]}:/.podbridge/$k:${ACCESS[k]}")
            LINKS+=("/.podbridge/$k" "${TO[k]}")
            continue
            ;;
        esac
        WORDS+=(--bind "${FROM[k]}:${TO[k]}:${ACCESS[k]}")
        covered+=${TO[k]}$'\n'
    done
    for ((k = 0; k < ${#FUSED[@]}; k += 3)); do
        mounted_by_runtime "run/fuse/${NAME[i]}.$k" "${FUSED[@]:k:3}"
    done
    for k in /tmp /var/tmp; do
        # private to the container, and shared with its probes
        if [[ $covered != *$'\n'$k$'\n'* ]]; then
            mkdir -p "work/${NAME[i]}$k"
            WORDS+=(--bind "$PWD/work/${NAME[i]}$k:$k:rw")
        fi
    done
}

runtime_user() { own_user "$1" "$FAKEROOT_USER"; }

runtime_start() {
    local i=$1 name=${NAME[$1]}
    rm -rf "work/$name"
    mkdir -p "work/$name"
    image_or_cannot "$i"
    fetch "$i"
    write_image_config "$name"
    mounts_or_cannot "$i"
    BEFORE=("${SESSION[@]}")
    ((${#SHARED[@]} == 0)) || into_namespace "$i" start
    launch "$i" start
}

# is_in_container I: sets RESULT to a process of the container whose namespaces this user can join: not those that a
# set-user-id program has made.
is_in_container() {
    family "${PID[$1]}"
    runtime_own "$1"
    for RESULT in "${FAMILY[@]}"; do
        # a program that mounts for apptainer has the machine's root
        if [[ ! /proc/$RESULT/root/. -ef /. ]]; then
            ((UID == 0)) || [[ ! /proc/$RESULT/ns/user -ef /proc/self/ns/user ]]
            return
        fi
    done
    return 1
}

runtime_session() {
    if ! is_in_container "$1"; then
        printf '%s\n' "this machine's $RUNTIME is installed with set-user-id rights: its containers can't be entered" >&2
        exit 126
    fi
    join "$RESULT" "${@:2}"
}

# Where it cannot be joined, a command for a running container runs in a second container with the same image, volumes, /tmp
# and variables.
runtime_exec() {
    ! is_in_container "$1" || join "$RESULT" "${@:2}"
    image_of "$1" || return
    [[ -e run/${NAME[$1]}.sif ]] && IMAGE=$PWD/run/${NAME[$1]}.sif
    mounts_of "$1" && link_mounts || return
    BEFORE=()
    ((${#SHARED[@]} == 0)) || into_namespace "$1" exec "${@:2}"
    launch "$1" exec "${@:2}"
}

# inside I start|exec [WORD...]: called by job.sh in a separate namespace, in which it mounts files that others may change.
inside() {
    local i=$1
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    image_of "$i" || return
    [[ -e run/${NAME[i]}.sif ]] && IMAGE=$PWD/run/${NAME[i]}.sif
    mounts_of "$i" || return
    if [[ $2 == exec ]]; then
        hold_mounts || return
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
    local i=$1 name=${NAME[$1]} verb=run
    if [[ $2 == exec ]]; then
        pass_foreign "$name" || return
        arguments_of "$i" exec
        exec "${BEFORE[@]}" "${SETTER[@]}" "$RUNTIME" --silent exec "${WORDS[@]}" --env-file "run/$name.env" "$IMAGE" "${@:3}"
    fi
    devices_or_cannot "$i"
    PODBRIDGE_ADDRESS=$ADDRESS write_exports "$i" "run/$name.env"
    write_foreign "$name"
    pass_foreign "$name" || cannot "$name" 128 'ContainerCannotRun permanent' "$PROBLEM"
    # of each rank: a clean environment accepts variables with these names
    mpi "$i" 'export "APPTAINERENV_$name=${!name}" "SINGULARITYENV_$name=${!name}"'
    arguments_of "$i" start
    command_of "$i"
    [[ ! ${HAS_COMMAND[i]} ]] || verb='exec'
    if [[ ${#LINKS[@]} -gt 0 && ${HAS_COMMAND[i]} ]] && has_shell; then
        COMMAND=("${IMAGE_SHELL[@]}" -c "$MAKE_LINKS" sh "${#LINKS[@]}" "${LINKS[@]}" "${COMMAND[@]}")
    elif ((${#LINKS[@]} > 2)) || [[ ${LINKS[0]-} && ${FROM[${LINKS[0]##*/}]} != "$PWD/run/$name.message" ]]; then
        cannot "$name" 128 ContainerCannotRun "a volume below /dev, other than /dev/shm, needs a command and an image with a shell"
    fi
    umask 022
    go "$name"
    exec "${BEFORE[@]}" "${MPI[@]}" "${SETTER[@]}" "$RUNTIME" --silent "$verb" "${WORDS[@]}" --env-file "run/$name.env" \
        "$IMAGE" "${COMMAND[@]}"
}

# write_image_config NAME: run/NAME.config gets the working directory and HOME of the image, which apptainer stores in a SIF
# file that it makes of an image of a registry, and does not use.
write_image_config() {
    local id place kind text directory='' home='' start=''
    if [[ -f $IMAGE ]]; then
        while IFS='|' read -r id _ _ place kind; do
            [[ $kind != FS*Squashfs*System* ]] || start=${place%%-*}
            [[ $kind == JSON.Generic* ]] || continue
            text=$("$RUNTIME" sif dump "${id// /}" "$IMAGE")
            # the other one is what apptainer itself says of the image
            [[ $text != '{"data":'* ]] || continue
            directory=$(json_member WorkingDir "$text")
            [[ $text =~ \"Env\":\[(($JSON_STRING,?)*)\] && ${BASH_REMATCH[1]} =~ (^|,)\"HOME=(([^\"\\]|\\.)*)\" ]] &&
                home=$(json_string "${BASH_REMATCH[2]}")
        done < <("$RUNTIME" sif list "$IMAGE")
    fi 2>/dev/null
    [[ $directory == /* ]] || directory=''
    [[ $home != *:* ]] || home=''
    directory=${directory//$'\n'/}
    [[ ${directory:-/} == / ]] || has_directory "$directory" "${start// /}" || directory=missing:$directory
    printf '%s\n' "$directory" "${home//$'\n'/}" >"run/$1.config"
}

# is_mounted PATH: whether it is the place of a mount of the container, above one, or below one.
is_mounted() {
    local place
    for place in "${TO[@]}"; do
        [[ $1/ != "$place"/* && $place/ != "$1"/* ]] || return 0
    done
    return 1
}

# has_directory PATH START: whether the image has the directory; START is the offset of its file system. A container finds
# it behind links too, but takes longer than a look into the file system.
has_directory() {
    unsquashfs -no-wildcards -o "${2:-0}" -l -d '' "$IMAGE" "${1#/}" | grep -q -x -F -e "$1" ||
        [[ $("$RUNTIME" --silent exec "${OPTIONS[@]}" --pwd "$1" "$IMAGE" /podbridge-check 2>&1) == *'stat /podbridge-check'* ]]
} 2>/dev/null </dev/null

# read_image_config NAME: IMAGE_DIRECTORY and IMAGE_HOME, of a container that has started.
read_image_config() {
    IMAGE_DIRECTORY='' IMAGE_HOME=''
    [[ ! -e run/$1.config ]] || { IFS= read -r IMAGE_DIRECTORY && IFS= read -r IMAGE_HOME; } <"run/$1.config"
}

# runtime_own I: leave in FAMILY only the container's own processes. Apptainer's have its program; those that mount for it
# are outside of the container's PID namespace, if it has one.
runtime_own() {
    local pid own=() inner=()
    for pid in "${FAMILY[@]}"; do
        [[ ! /proc/$pid/exe -ef /proc/${PID[$1]}/exe ]] || continue
        own+=("$pid")
        [[ /proc/$pid/ns/pid -ef /proc/self/ns/pid ]] || inner+=("$pid")
    done
    ((${#inner[@]} == 0)) || own=("${inner[@]}")
    FAMILY=("${own[@]}")
}

# shellcheck disable=SC2016
MAKE_LINKS='
n=$1
shift
while [ "$n" -gt 0 ]; do
    mkdir -p "${2%/*}"
    ln -s "$1" "$2"
    shift 2
    n=$((n - 2))
done 2>/dev/null
exec "$@"'

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
    # two pulls of an image at the same time can break each other in the user's cache of layers (apptainer 1.4: "unexpected
    # end of JSON input")
    "$RUNTIME" pull --force "$1" "$IMAGE" || "$RUNTIME" pull --force --disable-cache "$1" "$IMAGE"
    code=$?
    remove_build "$2"
    return "$code"
}

remove_build() {
    [[ ! -s run/$1.build ]] || remove_tree "$(<"run/$1.build")"
    rm -f "run/$1.build"
}

runtime_clean() {
    rm -f "run/${NAME[$1]}".{env,foreign.env,pull,asked,progress,config}
    [[ ! -s run/root.area ]] || remove_tree "$(<run/root.area)/${NAME[$1]}"
    remove_build "${NAME[$1]}"
    release_mounts "${NAME[$1]}"
}

runtime_end() {
    [[ ! -s run/root.area ]] || remove_tree "$(<run/root.area)"
    : >run/root.area
    rm -f run/*.sif
    rm -rf work
}
