# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Runtime "none": processes of the host. Volumes are mounted in a private mount namespace. Its root consists of bind
# mounts, so that mount points can be created without a change of the host.

runtime_check() {
    NAMESPACE=''
    if ((UID == 0)) && unshare -m -- true 2>/dev/null; then
        NAMESPACE=root
    elif unshare -U -r -m -- true 2>/dev/null; then
        NAMESPACE=user
    fi
    export NAMESPACE
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
    [[ $how == start ]] && set -- setsid "$@"
    exec "$@"
}

# inside I start|exec [WORD...]: called by job.sh within the namespace.
inside() {
    local i=$1 how=$2 name=${NAME[$1]} k words=()
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
    # a unique name: probes of one container may run at the same time
    write_exports "$i" "run/$name.$BASHPID.env"
    # open, and without a name: no other process of the pod can read it by a path
    exec 7<"run/$name.$BASHPID.env"
    rm "run/$name.$BASHPID.env"
    if ((${#FOREIGN[@]})); then
        exec 6>"run/$name.$BASHPID.env"
        exec 5<"run/$name.$BASHPID.env"
        rm "run/$name.$BASHPID.env"
    elif ((${#SPECIAL[@]})); then
        words=(env "${SPECIAL[@]}")
    fi
    mkdir -p "work/$name"
    local directory=${DIRECTORY[i]:-$PWD/work/$name}
    if [[ $NAMESPACE ]]; then
        # leads to the job's directory also after the change of the root
        exec 9<.
        hold_mounts || cannot_now "$name" 128 CreateContainerConfigError "$NOT_HELD"
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
            env -0 -u NAMESPACE -u OWN_UID -u OWN_GID -u USER_GIVEN -u LC_ALL
            printf '%s=%s\0' ${LOCALE:+LC_ALL "$LOCALE"} "${VARIABLES[@]}"
        } >&6
        exec 6>&-
    fi
    set -- "$BASH" --norc --noprofile -c "$LAST_STEP" "$BASH" "${#words[@]}" "${words[@]}" "$@"
    if unshare --help 2>/dev/null | grep -q -e '--map-user[= ]'; then
        if [[ $NAMESPACE == user || $user != "$OWN_UID" || $group != "$OWN_GID" ]]; then
            # back to the user's own id, or to the requested one, without rights on the mounts
            set -- unshare "--map-user=$user" "--map-group=$group" -- "$@"
        fi
    fi
    unset -v NAMESPACE OWN_UID OWN_GID USER_GIVEN
    if [[ $LOCALE ]]; then
        LC_ALL=$LOCALE
    else
        unset -v LC_ALL
    fi
    exec "$@" 9<&-
}

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

# make_root I: build the new root, mount the volumes (FROM, TO, ACCESS), and change to it.
make_root() {
    local k
    NEW=$PWD/run/root
    PROBLEM='no new root'
    # private: no mount of this namespace propagates to the machine
    mkdir -p "$NEW" && mount --make-rprivate / && mount -t tmpfs -o mode=755 podbridge "$NEW" && mirror / || return 1
    make_places || return 1
    if [[ ${READONLY_ROOT[$1]} ]]; then
        PROBLEM='the root file system can not be made read-only'
        read_only_tree || return 1
    fi
    for k in "${ORDER[@]}"; do
        PROBLEM=${TO[k]}
        attach "$k" || return 1
    done
    PROBLEM='no way into the new root'
    [[ ! ${READONLY_ROOT[$1]} ]] || mount -o remount,bind,ro "$NEW" || return 1
    # pivot_root(2): the old root is stacked on the new one, and umount . removes it
    cd "$NEW" && pivot_root . . && umount -l . && cd /
}

# mirror FOLDER: bind-mount each entry of a directory of the host in the same directory of the new root.
mirror() {
    local entry name table=''
    shopt -s dotglob nullglob
    for entry in "${1%/}"/*; do
        if [[ -L $entry ]]; then
            cp -P -- "$entry" "$NEW$entry"
            continue
        elif [[ -d $entry ]]; then
            mkdir -- "$NEW$entry"
        else
            : >"$NEW$entry"
        fi
        printf -v name '%q' "$entry"
        [[ $name == "$entry" ]] || entry=$(escaped "$entry")
        table+="$entry $(escaped "$NEW")$entry none rbind 0 0"$'\n'
    done
    shopt -u dotglob nullglob
    # one process for all; an entry that can't be mounted (not permitted, or removed meanwhile) is missing
    printf '%s' "$table" >"$NEW/.table"
    mount -a -T "$NEW/.table" 2>/dev/null
    rm -f "$NEW/.table"
}

# Escape a path as fstab(5) requires.
escaped() {
    local text=$1
    text=${text//\\/\\134}
    text=${text// /\\040}
    text=${text//$'\t'/\\011}
    text=${text//$'\n'/\\012}
    printf '%s' "$text"
}

# make_places: make every mount point before anything is mounted, as a directory of the host that is covered later would hide
# what is mounted in it. PLACE are the mount points without links, ORDER their numbers, outer ones first. Those in another
# volume, INNER, are made by attach.
make_places() {
    local k other folder covered=()
    PLACE=() INNER=()
    for k in "${!TO[@]}"; do
        PROBLEM=${TO[k]}
        PLACE[k]=$(readlink -m -- "${TO[k]}") && [[ ${PLACE[k]} != / ]] || return 1
    done
    read -r -d '' -a ORDER < <(for k in "${!PLACE[@]}"; do printf '%s\t%s\n' "${PLACE[k]}" "$k"; done | sort | cut -f 2)
    for k in "${ORDER[@]}"; do
        for other in "${PLACE[@]}"; do
            [[ ${PLACE[k]} != "$other"/* ]] || INNER[k]=1
        done
        folder=${PLACE[k]}
        [[ ! ${INNER[k]-} && ! -e $folder ]] || continue
        while [[ ! -d ${folder:=/} ]]; do
            folder=${folder%/*}
        done
        covered+=("$folder")
    done
    # outer ones first here, too
    while IFS= read -r folder; do
        PROBLEM=$folder
        cover "$folder" || return 1
    done < <(printf '%s\n' "${covered[@]}" | sort -u | grep -v -x -e / -e '')
    for k in "${ORDER[@]}"; do
        PROBLEM=${TO[k]}
        [[ ${INNER[k]-} ]] || make_place "$k" || return 1
    done
}

# cover FOLDER: cover a directory of the host with a copy, in which mount points can be made.
cover() {
    mount -t tmpfs -o "mode=$(stat -c %a -- "$1")" podbridge "$NEW$1" && mirror "$1"
}

# make_place K: make a mount point, a directory or a file as the source is.
make_place() {
    if [[ -d ${FROM[$1]} ]]; then
        place_for_folder "$NEW" "${PLACE[$1]}"
    else
        place_for_file "$NEW" "${PLACE[$1]}"
    fi
}

# attach K: mount a volume at its place.
attach() {
    local place=$NEW${PLACE[$1]}
    [[ ! ${INNER[$1]-} ]] || make_place "$1" || return 1
    mount --rbind -- "${FROM[$1]}" "$place" || return 1
    [[ ${ACCESS[$1]} != ro ]] || read_only_mount "$place"
}

# Make every mount below the new root read-only, except those that programs must write to, and those in a directory that
# this user cannot enter: the container has the same user.
read_only_tree() {
    local place flags
    while read -r place flags; do
        case ${place#"$NEW"} in
        '' | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;;
        esac
        flags=,$flags,
        place=$(printf '%b' "$place")
        [[ -e $place ]] || continue
        mount -o "remount,bind,ro${flags//,rw,/,}" "$place" || return 1
    done < <(findmnt -R -r -n -o TARGET,VFS-OPTIONS -- "$NEW")
}

runtime_clean() {
    rm -f "run/${NAME[$1]}".*.env
    release_mounts "${NAME[$1]}"
}
