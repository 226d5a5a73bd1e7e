# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "none": processes of the host. Volumes are mounted in a private mount namespace, without a change of the host.

runtime_check() { find_namespace; }

# runtime_user I: any user and group, in a user namespace; else those of this site.
runtime_user() {
    local user=${RUN_AS[$1]%%:*} group=${RUN_AS[$1]#*:}
    user=${user:-$UID} group=${group:-${GROUPS[0]}}
    [[ $user != "$UID" || $group != "${GROUPS[0]}" ]] || return 0
    unshare "--map-user=$user" "--map-group=$group" -- true 2>/dev/null || own_user "$1" ''
}

runtime_start() {
    into "$1" start
}

# runtime_exec I WORD...: run a command beside the container, in an equal namespace.
runtime_exec() {
    into "$1" exec "${@:2}"
}

# The variables of the container, also those that it has from the batch system.
runtime_session() {
    take_variables "${PID[$1]}"
    runtime_exec "$@"
}

# into I start|exec [WORD...]: become the container, or a command beside it: a shell in the namespace, which has only the
# functions that it needs. To read all of job.sh again would take longer than to make the mounts.
into() {
    local i=$1 how=$2 name=${NAME[$1]} user=${RUN_AS[$1]%%:*} group=${RUN_AS[$1]#*:} directory words=() map=() foreign text
    shift 2
    directory=${DIRECTORY[i]:-$PWD/work/$name}
    if [[ $how == start ]]; then
        command_of "$i"
        set -- "${COMMAND[@]}"
        exec 8>"run/$name.why"
    else
        exec 8>/dev/null
    fi
    exports "$i"
    foreign=${#FOREIGN[@]}
    if ((foreign)); then
        # a unique name: probes of one container may run at the same time
        exec 6>"run/$name.$BASHPID.env"
        exec 5<"run/$name.$BASHPID.env"
        rm "run/$name.$BASHPID.env"
        # all variables of the command
        {
            env -0 -u LC_ALL -u PWD
            printf '%s=%s\0' ${LOCALE:+LC_ALL "$LOCALE"} PWD "$directory" "${VARIABLES[@]}"
        } >&6
        exec 6>&-
    elif ((${#SPECIAL[@]})); then
        words=(env "${SPECIAL[@]}")
    fi
    user=${user:-$UID} group=${group:-${GROUPS[0]}}
    if [[ $MAPS_USER || $user != "$UID" || $group != "${GROUPS[0]}" ]]; then
        # back to the user's own id, or to the requested one, without rights on the mounts
        map=(unshare "--map-user=$user" "--map-group=$group" --)
    fi
    # the last step: until then, each program would read the files of the locale
    text='unset -v LC_ALL'
    [[ ! $LOCALE ]] || printf -v text 'export LC_ALL=%q' "$LOCALE"
    export LC_ALL=C
    printf -v text '%s\n' "$text" "${EXPORTS[@]}"
    TMPDIR=$PWD/run hold_texts "$text" "$(
        declare -f "${FUNCTIONS[@]}"
        printf 'inside() {\n'
        declare -p "${DATA[@]}"
        printf 'step_inside "$@"\n}\n'
    )" || cannot "$name" 128 CreateContainerConfigError 'the variables could not be written'
    set -- "$BASH" --norc --noprofile -c "$FIRST_STEP$LAST_STEP" "$BASH" "$@"
    case $NAMESPACE in
    root) set -- unshare -m -- "$@" ;;
    user) set -- unshare -U -r -m -- "$@" ;;
    esac
    [[ $how == start ]] && set -- "${SESSION[@]}" "$@"
    exec "$@"
}

# hold_texts EXPORTS FUNCTIONS: descriptors 7 and 4 have the texts, in a pipe or, if they are long, in a file that has no name
# any more: no other process of the pod can read it by a path.
hold_texts() { exec 7<<<"$1" 4<<<"$2"; }

# What the shell in the namespace has of this script. All arrays are local to its function "inside": the container's variables
# may have their names.
FUNCTIONS=(
    step_inside set_up_inside cannot cannot_now mounts_or_cannot mounts_of add_mount add_own_file link_mounts hold_mounts hold_here
    enter_volume enter_host enter is_in make_root find_places without_links outer_first find_covers mirror make_places add_binds
    escape mount_table attach place_for_folder place_for_file find_flags read_only_mount read_only_tree find_setter
)
DATA=(
    i how name directory words map foreign NAME JOB NAMESPACE READONLY_ROOT HOST_AREAS HOST_PATH HOST_TYPE HOST_FREE
    FUSE_MODE SCRATCH_HELD NOT_HELD SET_BY_PERL SET_BY_PYTHON LAST_STEP
)

# shellcheck disable=SC2016
FIRST_STEP='
. /proc/self/fd/4 && exec 4<&- && inside "$@" || exit 128
set -- "${WORDS[@]}" "$@"
unset -v WORDS
'

# step_inside WORD...: WORDS is what comes before the words of the command.
step_inside() {
    local FROM TO ACCESS FUSED LINKED SHARED PLACE INNER COVER COVERS ORDER SETTER
    local -A COPY
    set_up_inside
    WORDS=("${#words[@]}" "${words[@]}")
    ((${#map[@]} == 0)) || exec "${map[@]}" "$BASH" --norc --noprofile -c "$LAST_STEP" "$BASH" "${WORDS[@]}" "$@" 9<&-
    exec 9<&-
}

set_up_inside() {
    local LC_ALL=C
    mounts_or_cannot "$i"
    if [[ $NAMESPACE ]]; then
        # leads to the job's directory also after the change of the root
        exec 9<.
        hold_mounts || cannot_now 128 CreateContainerConfigError "$NOT_HELD"
        umask 022
        make_root "$i" || cannot_now 128 ContainerCannotRun "volumes can't be mounted at their places: $PROBLEM"
    elif [[ ${#TO[@]} -gt 1 || ${READONLY_ROOT[i]} ]]; then
        cannot_now 128 'ContainerCannotRun permanent' "this machine gives no mount namespace to users, and the container has volumes"
    fi
    if ((foreign)); then
        find_setter || cannot_now 128 'ContainerCannotRun permanent' "$PROBLEM"
        # the setter itself starts with no variables: those of the pod for Perl and Python must not affect it
        words=("$(type -P env)" -i "${SETTER[@]}" 5 .)
    fi
    umask 022
    { [[ -d $directory ]] || mkdir -p -- "$directory"; } 2>/dev/null
    cd -- "$directory" || cannot_now 128 ContainerCannotRun 'the working directory can not be entered'
    [[ $how == start ]] || return 0
    if [[ $NAMESPACE ]]; then
        : >"/proc/self/fd/9/run/$name.go"
        # not 1<>: "declare -f" of bash drops this number
        [[ -p /proc/self/fd/9/run/waker ]] && printf . <>"/proc/self/fd/9/run/waker" >&0
    else
        : >"$JOB/run/$name.go"
    fi
}

# The variables are read from descriptor 7 last, so that no variable of the script collides; then the command is executed.
# $1 is the number of words before the command, which set variables that bash can't; descriptor 8 receives errors.
# shellcheck disable=SC2016
LAST_STEP='
. /proc/self/fd/7
if [[ ${@:$1+2:1} == */* ]]; then
    if [[ ! -e ${@:$1+2:1} ]]; then
        printf "ContainerCannotRun\n%s: no such file\n" "${@:$1+2:1}" | tee /proc/self/fd/8 >&2
        exit 127
    elif [[ ! -f ${@:$1+2:1} || ! -x ${@:$1+2:1} ]]; then
        printf "ContainerCannotRun\n%s: not an executable file\n" "${@:$1+2:1}" | tee /proc/self/fd/8 >&2
        exit 126
    fi
elif ! type -P -- "${@:$1+2:1}" >/dev/null; then
    printf "ContainerCannotRun\n%s: not found in PATH\n" "${@:$1+2:1}" >&8
    printf "%s: not found in PATH\n" "${@:$1+2:1}" >&2
    exit 127
fi
shift
exec "$@" 7<&- 8>&-'

# cannot_now CODE REASON MESSAGE: like cannot, within the namespace.
cannot_now() {
    printf '%s\n%s\n' "$2" "$3" >&8
    printf '%s\n' "$3" >&2
    exit "$1"
}

runtime_clean() {
    remove "run/${NAME[$1]}".*.env
    release_mounts "${NAME[$1]}"
}
