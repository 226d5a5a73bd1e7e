# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# What the runtimes that know images have in common.

# tool NAME: whether the program is there; the site's extra folders come first.
tool() {
    type -P -- "$1" >/dev/null && return
    note "there is no $1 on this machine"
    return 1
}

extra_paths() {
    local folder
    for folder in "${EXTRA_PATHS[@]}"; do
        PATH=$folder:$PATH
    done
}

# image_of I: IMAGE is a path or a name with a scheme. A path first, then a scheme, a file of the site, an unpacked image,
# and at last the site's prefix.
image_of() {
    local name=${IMAGES[$1]} plain
    IMAGE=$name
    plain=${name#docker://}
    case $name in
    /*) return ;;
    docker://*) ;;
    *://*) return ;;
    esac
    for IMAGE in ${IMAGE_DIR:+"$IMAGE_DIR/${plain//:/_}" "$IMAGE_DIR/${plain//:/_}.sif" "$IMAGE_DIR/${plain//:/_}.sqsh"} \
        ${UNPACKED:+"$UNPACKED/$plain"}; do
        [[ $plain != *..* && -e $IMAGE ]] && return
    done
    IMAGE=$name
    [[ $name == *://* ]] && return
    if [[ $IMAGE_ROOT == */ || $IMAGE_ROOT == '' ]]; then
        IMAGE=$IMAGE_ROOT$name
    else
        IMAGE=$IMAGE_ROOT/$name
    fi
}

# may_run_as I: whether the user that the pod asks for is the one that this runtime gives (RUN_AS is <user>:<group>).
may_run_as() {
    local user=${RUN_AS[$1]%%:*} group=${RUN_AS[$1]#*:}
    if [[ ${NON_ROOT[$1]} && ! $user ]] && ((UID == 0)); then
        cannot "${NAME[$1]}" 128 CreateContainerConfigError 'runAsNonRoot: the user of this site is root'
    fi
    if [[ $user && $user != "$UID" && $user != "$2" ]]; then
        cannot "${NAME[$1]}" 128 CreateContainerConfigError "runAsUser: $user is not allowed; allowed: $UID, the user of this site"
    fi
    if [[ $group && $group != "${GROUPS[0]}" && $user != "$2" ]]; then
        cannot "${NAME[$1]}" 128 CreateContainerConfigError "runAsGroup: $group is not allowed; allowed: ${GROUPS[0]}, the group of this site"
    fi
}

# Whether a bind specification "source:place:options" can hold the job's own folder.
plain_folder() {
    [[ $PWD != *[:,\ \"\\]* ]] && return
    note "the job's folder has a character in its name that the container runtime gives a meaning to"
    return 1
}

# mpi I: MPI is what stands before a main container's command line.
mpi() {
    MPI=()
    if [[ $MPI_ASKED && ${KIND[$1]} == main ]]; then
        MPI=(mpiexec -np "${SLURM_NTASKS:-1}" "${MPI_WORDS[@]}")
    fi
}

# pull_failed NAME OUTPUT: the runtime could not get the image; its words go to the message.
pull_failed() {
    local why
    why=$(tail -n 5 "$2" | head -c 2000)
    cat "$2" >&2
    cannot "$1" 128 ErrImagePull "the image could not be pulled: $why"
}
