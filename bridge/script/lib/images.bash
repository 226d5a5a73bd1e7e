# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# What the runtimes with images share.

# tool NAME: whether the program exists; the site's extra directories come first.
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

# image_of I: IMAGE is a path in one of the site's folders for images, or a name that this runtime pulls (SCHEMES). A path
# first, then a scheme, a file of the site, an unpacked image, and at last the site's prefix. PROBLEM says what is wrong.
image_of() {
    local name=${IMAGES[$1]} plain
    IMAGE=$name
    plain=${name#docker://}
    if [[ $name != /* && ($name == docker://* || $name != *://*) ]]; then
        for IMAGE in ${IMAGE_DIR:+"$IMAGE_DIR/${plain//:/_}" "$IMAGE_DIR/${plain//:/_}.sif" "$IMAGE_DIR/${plain//:/_}.sqsh"} \
            ${UNPACKED:+"$UNPACKED/$plain"}; do
            if [[ $plain != *..* && -e $IMAGE ]]; then
                allowed_image
                return
            fi
        done
        IMAGE=$name
        if [[ $name != *://* ]]; then
            if [[ $IMAGE_ROOT == */ || $IMAGE_ROOT == '' ]]; then
                IMAGE=$IMAGE_ROOT$name
            else
                IMAGE=$IMAGE_ROOT/$name
            fi
        fi
    fi
    allowed_image
}

# allowed_image: whether IMAGE may be used; a path becomes the one that its links lead to.
allowed_image() {
    local entry area real
    case $IMAGE in
    /*)
        PROBLEM="there is no image $IMAGE on this machine"
        real=$(readlink -e -- "$IMAGE") || return 1
        for entry in "${IMAGE_AREAS[@]}"; do
            area=$(readlink -e -- "$entry") || continue
            if [[ $real == "${area%/}"/* || ($entry != */ && $real == "$area") ]]; then
                IMAGE=$real
                return
            fi
        done
        PROBLEM="the image $IMAGE leads to $real, which is in no folder that this site keeps for images"
        return 1
        ;;
    *://*)
        PROBLEM="images of ${IMAGE%%://*}:// are not allowed at this site"
        [[ " $SCHEMES " == *" ${IMAGE%%://*} "* ]] || return 1
        # some runtimes get it without the scheme: as a path, or an option
        PROBLEM="$IMAGE has no name of an image after ${IMAGE%%://*}://"
        [[ ${IMAGE#*://} == [A-Za-z0-9]* ]]
        ;;
    *)
        PROBLEM="this site has no image $IMAGE, and no image_prefix for it"
        [[ $PLAIN_NAMES && $IMAGE == [A-Za-z0-9]* ]]
        ;;
    esac
}

JSON_STRING='"(([^"\\]|\\.)*)"'

# json_member NAME TEXT: the value of the first member with this name that is a string.
json_member() {
    [[ $2 =~ (^|[{,[:space:]])\"$1\":\ *$JSON_STRING ]] && json_string "${BASH_REMATCH[2]}"
}

# json_string TEXT: the text of a string of JSON; nothing if it has characters that no path needs.
json_string() {
    local text=$1
    [[ $text != *\\[!\"\\/]* ]] || return 0
    text=${text//\\\"/\"}
    text=${text//\\\//\/}
    printf '%s' "${text//\\\\/\\}"
}

# image_or_cannot I
image_or_cannot() {
    image_of "$1" || cannot "${NAME[$1]}" 128 InvalidImageName "$PROBLEM"
}

# is_plain PATH: whether a bind specification "source:place:options" can contain the path.
is_plain() { [[ $1 != *[:,^[:space:]\"\\]* ]]; }

# Whether it can contain the path of the job's directory.
plain_folder() {
    is_plain "$PWD" && return
    note "the job's folder has a character in its name that the container runtime gives a meaning to"
    return 1
}

# mpi I [PASS]: MPI is what stands before a main container's command line. The shell text PASS is run in each process that
# mpiexec starts, for each variable (name) that tells it which one it is; "$@" is the command.
mpi() {
    MPI=()
    if [[ $MPI_ASKED && ${KIND[$1]} == main ]]; then
        MPI=(mpiexec -np "${SLURM_NTASKS:-1}" "${MPI_WORDS[@]}")
        if [[ ${2-} ]]; then
            # shellcheck disable=SC2016
            MPI+=("$BASH" --norc --noprofile -c '
                for name in $(compgen -e); do
                    [[ $name == SLURM_JWT || ! $name =~ ^('"${BATCH//\*/.*}|$DEVICES"')$ ]] || '"$2"'
                done
                exec "$@"' rank)
        fi
    fi
}

# pull_failed NAME OUTPUT: the runtime could not pull the image; its output is the message.
pull_failed() {
    local why
    why=$(tail -n 5 "$2" | head -c 2000)
    cat "$2" >&2
    cannot "$1" 128 ErrImagePull "the image could not be pulled: $why"
}

# copy_image NAME: copy an image that is a directory for one run, so that mount points can be created in it.
copy_image() {
    [[ -d run/$1.image ]] && return
    cp -a -- "$IMAGE/." "run/$1.image" >"run/$1.pull" 2>&1 || pull_failed "$1" "run/$1.pull"
}

# has_file ROOT FILE: whether an image, unpacked at ROOT, has a file with no link in its path. A link of an image leads to a
# file of the machine if it is followed outside of the container.
has_file() {
    local root
    root=$(readlink -e -- "$1") && [[ -f $root/$2 && $(readlink -e -- "$root/$2") == "$root/$2" ]]
}

remove_image() {
    [[ ! -d run/$1.image ]] || remove_tree "run/$1.image"
}

# make_directory I [ROOT]: the working directory, in the innermost volume that it lies in or else in the image at ROOT; not
# in a volume that is read-only.
make_directory() {
    local at=${2-} rest=${DIRECTORY[$1]} k best=''
    for k in "${!TO[@]}"; do
        if [[ $rest/ == "${TO[k]}"/* ]] && ((${#TO[k]} > ${#best})); then
            best=${TO[k]} at=${FROM[k]}
            [[ ${ACCESS[k]} != ro ]] || at=''
        fi
    done
    [[ ! $at ]] || place_for_folder "$at" "${rest#"$best"}" 2>/dev/null
}

# never_ran I LINE: the runtime's last line has the reason why the program could not run; RESULT is the exit code.
never_ran() {
    RESULT=128
    case $2 in
    *'No such file'*) RESULT=127 ;;
    *'ermission denied'*) RESULT=126 ;;
    esac
    printf '%s\n%s\n' ContainerCannotRun "$2" >"run/${NAME[$1]}.why"
}

# tell_when_in NAME PID I: until then a command for the container would run outside of it, or not at all. Every runtime
# that calls it has the function is_in_container I, which is asked as long as the process lives.
tell_when_in() {
    while kill -0 "$2"; do
        if is_in_container "$3"; then
            go "$1"
            return
        fi
        sleep 0.05
    done
} </dev/null >/dev/null 2>&1
