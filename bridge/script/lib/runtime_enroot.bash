# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "enroot". Images and root file systems are in the job's directory and are removed with it.

# PLAIN_NAMES: whether an image name without a scheme refers to a registry. FORMAT: the format of a pulled image.
SCHEMES='docker' PLAIN_NAMES='' FORMAT=sqsh
RUNTIME_SECRETS=(run/enroot-credentials run/enroot.config)

runtime_check() {
    extra_paths
    export ENROOT_DATA_PATH=$PWD/run/enroot ENROOT_RUNTIME_PATH=$PWD/run/enroot.runtime ENROOT_TEMP_PATH=$PWD/run
    [[ $CACHE_DIR ]] && export ENROOT_CACHE_PATH=$CACHE_DIR
    if [[ -s run/enroot-credentials ]]; then
        mkdir -p run/enroot.config
        mv run/enroot-credentials run/enroot.config/.credentials
        export ENROOT_CONFIG_PATH=$PWD/run/enroot.config
    fi
    mkdir -p "$ENROOT_DATA_PATH" "$ENROOT_RUNTIME_PATH"
    tool "$RUNTIME" && plain_folder
}

runtime_user() { own_user "$1" 0; }

runtime_start() {
    local i=$1 name=${NAME[$1]}
    image_or_cannot "$i"
    if [[ ! -d $ENROOT_DATA_PATH/$name ]]; then
        if [[ $IMAGE == docker://* ]]; then
            fetch_image "$i" "$PWD/run/$name.sqsh"
            IMAGE=$PWD/run/$name.sqsh
        fi
        "$RUNTIME" create --name "$name" "$IMAGE" >"run/$name.pull" 2>&1 </dev/null || pull_failed "$name" "run/$name.pull"
        rm -f "run/$name.sqsh"
    fi
    mounts_or_cannot "$i"
    BEFORE=("${SESSION[@]}")
    ((${#SHARED[@]} == 0)) || into_namespace "$i"
    launch "$i"
}

# inside I: what job.sh does in a namespace of its own, where it holds what others may change.
inside() {
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    mounts_of "$1" || return
    hold_or_cannot "$1"
    leave_namespace
    launch "$1"
}

# arguments_of I: sets WORDS to the options of the container, with its mounts.
arguments_of() {
    local i=$1 k
    WORDS=()
    for k in "${OPTIONS[@]}"; do
        [[ ${READONLY_ROOT[i]} && ($k == --rw || $k == -w) ]] || WORDS+=("$k")
    done
    [[ ${RUN_AS[i]%%:*} == 0 ]] && WORDS+=(--root)
    for k in "${!TO[@]}"; do
        if [[ -d ${FROM[k]} ]]; then
            WORDS+=(--mount "${FROM[k]}:${TO[k]}:none:x-create=dir,rbind,${ACCESS[k]}")
        else
            WORDS+=(--mount "${FROM[k]}:${TO[k]}:none:x-create=file,bind,${ACCESS[k]}")
        fi
    done
}

# launch I: replace this process by the container.
launch() {
    local i=$1 name=${NAME[$1]} rc
    arguments_of "$i"
    # the command script: the variables, the directory, then the command of the pod, else of the image
    rc=run/$name.rc
    devices_or_cannot "$i"
    # read by enroot's hook for GPUs
    WORDS+=(--env "NVIDIA_VISIBLE_DEVICES=$(
        IFS=,
        printf '%s' "${GIVEN[*]:-void}"
    )")
    write_exports "$i" "$rc"
    command_of "$i"
    {
        if [[ ${DIRECTORY[i]} ]]; then
            printf 'cd -- %q || exit 128\n' "${DIRECTORY[i]}"
        elif [[ ${HAS_COMMAND[i]} ]] && has_file "$ENROOT_DATA_PATH/$name" etc/rc; then
            # the image's own, with which its command script begins
            while IFS= read -r k; do
                [[ $k =~ ^cd\ \"(.*)\"\ \&\&\ unset\ OLDPWD ]] || continue
                printf 'cd -- %q 2>/dev/null\n' "${BASH_REMATCH[1]}"
                break
            done <"$ENROOT_DATA_PATH/$name/etc/rc"
        fi 2>/dev/null
        if [[ ${HAS_COMMAND[i]} ]]; then
            printf 'exec "$@"\n'
        else
            printf '. /etc/rc\n'
        fi
    } >>"$rc"
    mpi "$i" 'set -- "$1" "$2" --env "$name=${!name}" "${@:3}"'
    umask 022
    go "$name"
    exec "${BEFORE[@]}" "${MPI[@]}" "$RUNTIME" start --rc "$rc" "${WORDS[@]}" "$name" "${COMMAND[@]}"
}

pull_image() { "$RUNTIME" import --output "$1" "$(with_registry "$IMAGE")"; }

# enroot requires docker://registry#image if the registry is not Docker Hub.
with_registry() {
    local rest=${1#*://}
    if [[ $rest != *'#'* && ${rest%%/*} == *[.:]* && $rest == */* ]]; then
        printf '%s' "${1%%://*}://${rest%%/*}#${rest#*/}"
    else
        printf '%s' "$1"
    fi
}

runtime_exec() {
    exec "$RUNTIME" exec "${PID[$1]}" "${@:2}"
}

# The next run starts with a new root file system, as a new container does.
runtime_clean() {
    rm -f "run/${NAME[$1]}".{rc,pull}
    release_mounts "${NAME[$1]}"
    "$RUNTIME" remove --force "${NAME[$1]}" >/dev/null 2>&1 </dev/null
}

runtime_end() {
    remove_tree run/enroot
    rm -rf run/*.sqsh run/enroot.runtime run/enroot.config
}
