# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Files and folders of volumes.

declare -A SIZE_LIMIT SCRATCH PUT
declare -a BEFORE LEAVE

# put PATH MODE: write standard input, base64, to volumes/PATH. A file that was there before the script is newer: a
# token that was renewed while the job waited. Of two sources of a volume with the same path, the last one counts; the
# mode of the first may forbid to write.
put() {
    [[ ! -e volumes/$1 || ${PUT[$1]} ]] || return 0
    PUT[$1]=1
    mkdir -p -- "volumes/${1%/*}"
    rm -f -- "volumes/$1"
    base64 -d >"volumes/$1" && chmod "$2" "volumes/$1"
}

# keep PATH MODE: write standard input, base64, to run/PATH, which no container sees.
keep() {
    mkdir -p -- "run/$(dirname -- "$1")"
    base64 -d >"run/$1" && chmod "$2" "run/$1"
}

# scratch_of VOLUME: the folder of an emptyDir; SCRATCH[volume] is disk or memory.
scratch_of() {
    local area
    if [[ ${SCRATCH[$1]} == memory && -s run/memory.area ]]; then
        area=$(<run/memory.area)
    elif [[ -s run/disk.area ]]; then
        area=$(<run/disk.area)
    else
        area=$PWD/scratch
    fi
    printf '%s' "$area/$1"
}

# make_area FILE FOLDER: make a folder of this job's own in one that others may write to, and note it in FILE. Nobody can
# have made it before, as its name is random and it is made in one step; nobody can put another in its place later.
make_area() {
    local owner mode area
    read -r owner mode < <(stat -L -c '%u %a' -- "$2") || return 1
    if [[ $owner != 0 && $owner != "$UID" ]] || (((8#$mode & 8#1002) == 2)); then
        note "$2: not used for volumes: it must belong to root or to this user, and be sticky where everybody may write"
        return 1
    fi
    area=$(mktemp -d -- "${2%/}/podbridge-${PWD##*/}.XXXXXXXX") || return 1
    printf '%s' "$area" >"$1"
}

make_scratch() {
    local volume
    ((${#SCRATCH[@]})) || return 0
    if [[ " ${SCRATCH[*]} " == *' memory '* && -w /dev/shm ]]; then
        make_area run/memory.area /dev/shm || return 1
    fi
    if [[ $SCRATCH_AREA ]]; then
        if [[ ${WORKDIR_BELOW-} ]]; then
            SCRATCH_AREA=$(host_path "$SCRATCH_AREA" DirectoryOrCreate "${WORKDIR_BELOW[@]}") || return 1
        fi
        make_area run/disk.area "$SCRATCH_AREA" || return 1
    fi
    for volume in "${!SCRATCH[@]}"; do
        mkdir -p -- "$(scratch_of "$volume")" || return 1
        chmod 777 "$(scratch_of "$volume")"
    done
}

remove_scratch() {
    local volume file
    for volume in "${!SCRATCH[@]}"; do
        remove_tree "$(scratch_of "$volume")"
    done
    for file in run/memory.area run/disk.area; do
        [[ -s $file ]] && rmdir -- "$(<"$file")" && rm -f "$file"
    done 2>/dev/null
    return 0
}

remove_tree() {
    rm -rf -- "$1" 2>/dev/null && return
    chmod -R u+rwx -- "$1" 2>/dev/null
    rm -rf -- "$1" 2>/dev/null || runtime_remove "$1"
}

# host_path PATH TYPE ALLOWED...: check a hostPath volume, and give its real path.
host_path() {
    local path=$1 type=$2 real allowed
    shift 2
    real=$(readlink -m -- "$path") || return 1
    for allowed in "$@"; do
        allowed=$(readlink -e -- "$allowed") || continue
        if [[ $real == "$allowed" || $real == "${allowed%/}"/* ]]; then
            case $type in
            DirectoryOrCreate) [[ -e $real ]] || mkdir -p -- "$real" ;;
            FileOrCreate) [[ -e $real ]] || : >>"$real" ;;
            esac 2>/dev/null
            [[ -e $real ]] || return 1
            case $type in
            '') ;;
            Directory*) [[ -d $real ]] || return 1 ;;
            File*) [[ -f $real ]] || return 1 ;;
            Socket) [[ -S $real ]] || return 1 ;;
            CharDevice) [[ -c $real ]] || return 1 ;;
            BlockDevice) [[ -b $real ]] || return 1 ;;
            esac
            printf '%s' "$real"
            return
        fi
    done
    return 1
}

mounts_or_cannot() {
    mounts_of "$1" && return
    cannot "${NAME[$1]}" 128 CreateContainerConfigError \
        'a volume has nothing at its subPath, or the subPath leads out of it'
}

# add_mount KIND SOURCE SUBPATH MODE TARGET [shared]: one mount of a container, into FROM, TO and ACCESS, or
# volume, path in it and place into FUSED, where the runtime mounts it. SHARED has the paths that somebody else may change
# until they are mounted (see hold_mounts), by the number of the mount: FROM is then the volume.
# Links that lead out of the volume are not followed.
add_mount() {
    local kind=$1 root=$2 sub=$3 real
    case $kind in
    files) root=$PWD/volumes/$root ;;
    scratch) root=$(scratch_of "$root") ;;
    host) root=${HOST_PATH[$root]} ;;
    own) root=$PWD/$root ;;
    fuse)
        if [[ $FUSE_MODE ]]; then
            FUSED+=("$root" "$sub" "$5")
            return
        fi
        root=$PWD/fuse/$root
        ;;
    esac
    real=$root
    if [[ ${6-} ]]; then
        SHARED[${#FROM[@]}]=$sub
    elif [[ $sub ]]; then
        real=$(readlink -m -- "$root/$sub")
        root=$(readlink -m -- "$root")
        [[ $real == "$root"/* ]] || return 1
        [[ -e $real || $kind == files ]] || mkdir -p -- "$real" || return 1
    fi
    [[ -e $real ]] || return 1
    FROM+=("$real") TO+=("$5") ACCESS+=("$4")
}

# hold_mounts NAME: to be called in a mount namespace of the container's own. What stands in SHARED is opened, looked at
# once it is open, and mounted from its descriptor at run/NAME.held.<number>, which no container can reach: FROM becomes
# that. So nothing that is done to the volume meanwhile changes what the container gets.
hold_mounts() {
    local k held descriptor
    for k in "${!SHARED[@]}"; do
        held=$PWD/run/$1.held.$k
        descriptor=''
        hold "${FROM[k]}" "${SHARED[k]}" || return 1
        if [[ -d /proc/self/fd/$descriptor ]]; then
            mkdir -p -- "$held"
        else
            : >>"$held"
        fi || return 1
        # without -c, mount would look up the descriptor's path, and mount what is there by then
        mount -c --rbind -- "/proc/self/fd/$descriptor" "$held" || return 1
        exec {descriptor}<&-
        FROM[k]=$held
    done
}

# hold VOLUME PATH: open what is at a path of a volume; folders that are missing are made. After each step the place that
# was reached is looked at: it must be in the volume.
hold() {
    local root rest=$2/ part from=$PWD
    cd -P -- "$1" || return 1
    root=$(readlink /proc/self/cwd)
    while [[ $rest ]]; do
        part=${rest%%/*} rest=${rest#*/}
        [[ $part && $part != . ]] || continue
        [[ -e ./$part || -L ./$part ]] || mkdir -m 755 -- "./$part" 2>/dev/null
        if [[ ! $rest && -f ./$part ]]; then
            exec {descriptor}<"./$part" && is_within "$(readlink "/proc/self/fd/$descriptor")" "$root"
            break
        fi
        cd -P -- "./$part" || break
        is_within "$(readlink /proc/self/cwd)" "$root" || break
    done
    if [[ ! $rest && ! $descriptor ]] && is_within "$(readlink /proc/self/cwd)" "$root"; then
        exec {descriptor}<.
    fi
    cd -- "$from" || return 1
    [[ $descriptor ]] && is_within "$(readlink "/proc/self/fd/$descriptor")" "$root"
} 2>/dev/null

# is_within PATH FOLDER
is_within() { [[ $1 == "${2%/}"/* && $1 != *' (deleted)' ]]; }

# release_mounts NAME: the places of what was held; nothing is mounted there outside of the container's namespace.
release_mounts() {
    rm -f "run/$1".held.*
    rmdir "run/$1".held.*
} 2>/dev/null

# into_namespace I WORD...: become BEFORE job.sh inside I WORD..., root of a user and a mount namespace of its own. What
# the machine mounts later, as automounters do, comes in.
into_namespace() {
    local words=(-U -r -m)
    unshare --help 2>/dev/null | grep -q -e --propagation && words+=(--propagation slave)
    unshare --help 2>/dev/null | grep -q -e '--map-user[= ]' ||
        cannot "${NAME[$1]}" 128 CreateContainerConfigError \
            'the subPath of a volume that others write to needs unshare --map-user (util-linux 2.36 or newer)'
    export PODBRIDGE_ADDRESS=$ADDRESS OWN_UID=$UID OWN_GID=${GROUPS[0]}
    exec "${BEFORE[@]}" unshare "${words[@]}" -- "$BASH" "$PWD/job.sh" inside "$@"
}

# leave_namespace: BEFORE, and LEAVE, are what makes a command the user it was again, out of reach of the mounts.
leave_namespace() {
    LEAVE=(unshare "--map-user=$OWN_UID" "--map-group=$OWN_GID" --)
    BEFORE=("${LEAVE[@]}")
    unset -v OWN_UID OWN_GID
}

NOT_HELD='the subPath of a volume could not be mounted: it leads out of the volume, or is no folder and no file'

# hold_or_cannot I: as hold_mounts, ending the start of the container.
hold_or_cannot() {
    hold_mounts "${NAME[$1]}" || cannot "${NAME[$1]}" 128 CreateContainerConfigError "$NOT_HELD"
}
