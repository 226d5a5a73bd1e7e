# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "none": processes of the host. Volumes are mounted in a private mount namespace, without a change of the host.

RUNTIME_FOLDERS=(run/root)

# NAMESPACE: whether containers get mount namespaces, as root or in a user namespace; UNSHARE: options of unshare(1).
runtime_check() {
    local help option
    NAMESPACE='' UNSHARE=''
    if ((UID == 0)) && help=$(exec unshare -m -- unshare --help 2>/dev/null); then
        NAMESPACE=root
    elif help=$(exec unshare -U -r -m -- unshare --help 2>/dev/null); then
        NAMESPACE=user
    fi
    for option in --map-user --propagation; do
        [[ $help != *" $option"[=\ ]* ]] || UNSHARE+=$option
    done
    export NAMESPACE UNSHARE
}

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

into() {
    local how=$2
    export PODBRIDGE_ADDRESS=$ADDRESS OWN_UID=$UID OWN_GID=${GROUPS[0]} USER_GIVEN=${RUN_AS[$1]}
    case $NAMESPACE in
    root) set -- unshare -m -- "$BASH" "$PWD/job.sh" inside "$@" ;;
    user) set -- unshare -U -r -m -- "$BASH" "$PWD/job.sh" inside "$@" ;;
    *) set -- "$BASH" "$PWD/job.sh" inside "$@" ;;
    esac
    [[ $how == start ]] && set -- "${SESSION[@]}" "$@"
    exec "$@"
}

# inside I start|exec [WORD...]: called by job.sh within the namespace.
inside() {
    local i=$1 how=$2 name=${NAME[$1]} text words=()
    shift 2
    ADDRESS=$PODBRIDGE_ADDRESS
    unset -v PODBRIDGE_ADDRESS
    mounts_or_cannot "$i"
    if [[ $how == start ]]; then
        command_of "$i"
        set -- "${COMMAND[@]}"
        exec 8>"run/$name.why"
    else
        exec 8>/dev/null
    fi
    exports "$i"
    printf -v text '%s\n' "${EXPORTS[@]}"
    TMPDIR=$PWD/run hold_text "$text"
    if ((${#FOREIGN[@]})); then
        # a unique name: probes of one container may run at the same time
        exec 6>"run/$name.$BASHPID.env"
        exec 5<"run/$name.$BASHPID.env"
        rm "run/$name.$BASHPID.env"
    elif ((${#SPECIAL[@]})); then
        words=(env "${SPECIAL[@]}")
    fi
    local directory=${DIRECTORY[i]:-$PWD/work/$name}
    if [[ $NAMESPACE ]]; then
        # leads to the job's directory also after the change of the root
        exec 9<.
        hold_mounts || cannot_now "$name" 128 CreateContainerConfigError "$NOT_HELD"
        umask 022
        make_root "$i" || cannot_now "$name" 128 ContainerCannotRun "volumes can't be mounted at their places: $PROBLEM"
    elif [[ ${#TO[@]} -gt 1 || ${READONLY_ROOT[i]} ]]; then
        cannot_now "$name" 128 'ContainerCannotRun permanent' "this machine gives no mount namespace to users, and the container has volumes"
    fi
    if ((${#FOREIGN[@]})); then
        find_setter || cannot_now "$name" 128 'ContainerCannotRun permanent' "$PROBLEM"
        words=("$(type -P env)" -i "${SETTER[@]}" 5 .)
    fi
    umask 022
    { [[ -d $directory ]] || mkdir -p -- "$directory"; } 2>/dev/null
    cd -- "$directory" || cannot_now "$name" 128 ContainerCannotRun 'the working directory can not be entered'
    if [[ $how == start ]]; then
        if [[ $NAMESPACE ]]; then
            : >"/proc/self/fd/9/run/$name.go"
            [[ -p /proc/self/fd/9/run/wake ]] && printf . 1<>"/proc/self/fd/9/run/wake"
        else
            : >"$JOB/run/$name.go"
        fi
    fi
    local user=${USER_GIVEN%%:*} group=${USER_GIVEN#*:}
    user=${user:-$OWN_UID} group=${group:-$OWN_GID}
    if ((${#FOREIGN[@]})); then
        # all variables of the command; the setter itself starts with none, so that the pod's variables for Perl and Python do
        # not affect it
        {
            env -0 -u NAMESPACE -u UNSHARE -u OWN_UID -u OWN_GID -u USER_GIVEN -u LC_ALL
            printf '%s=%s\0' ${LOCALE:+LC_ALL "$LOCALE"} "${VARIABLES[@]}"
        } >&6
        exec 6>&-
    fi
    set -- "$BASH" --norc --noprofile -c "$LAST_STEP" "$BASH" "${#words[@]}" "${words[@]}" "$@"
    if [[ $UNSHARE == *--map-user* && ($NAMESPACE == user || $user != "$OWN_UID" || $group != "$OWN_GID") ]]; then
        # back to the user's own id, or to the requested one, without rights on the mounts
        set -- unshare "--map-user=$user" "--map-group=$group" -- "$@"
    fi
    unset -v NAMESPACE UNSHARE OWN_UID OWN_GID USER_GIVEN
    if [[ $LOCALE ]]; then
        LC_ALL=$LOCALE
    else
        unset -v LC_ALL
    fi
    exec "$@" 9<&-
}

# hold_text TEXT: descriptor 7 has the text, in a pipe or, if it is long, in a file that has no name any more: no other
# process of the pod can read it by a path.
hold_text() { exec 7<<<"$1"; }

# A new shell reads the variables from descriptor 7 and executes the command, so that no variable of the script collides.
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

# cannot_now NAME CODE REASON MESSAGE: like cannot, within the namespace.
cannot_now() {
    printf '%s\n%s\n' "$3" "$4" >&8
    printf '%s\n' "$4" >&2
    exit "$2"
}

runtime_clean() {
    remove "run/${NAME[$1]}".*.env
    release_mounts "${NAME[$1]}"
}
