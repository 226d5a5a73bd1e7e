# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Files and folders of volumes.

declare -A SIZE_LIMIT SCRATCH

# put PATH MODE: write standard input, base64, to volumes/PATH.
put() {
    mkdir -p -- "volumes/${1%/*}"
    base64 -d >"volumes/$1" && chmod "$2" "volumes/$1"
}

# keep PATH MODE: write standard input, base64, to run/PATH, which no container sees.
keep() {
    mkdir -p -- "run/$(dirname -- "$1")"
    base64 -d >"run/$1" && chmod "$2" "run/$1"
}

# An emptyDir: SCRATCH[volume] is disk or memory.
scratch_of() {
    local volume=$1
    if [[ ${SCRATCH[$volume]} == memory && -w /dev/shm ]]; then
        printf '%s' "/dev/shm/podbridge-${PWD##*/}/$volume"
    elif [[ $SCRATCH_AREA ]]; then
        printf '%s' "$SCRATCH_AREA/podbridge-${PWD##*/}/$volume"
    else
        printf '%s' "$PWD/scratch/$volume"
    fi
}

make_scratch() {
    local volume
    for volume in "${!SCRATCH[@]}"; do
        mkdir -p -- "$(scratch_of "$volume")" || return 1
        chmod 777 "$(scratch_of "$volume")"
    done
}

remove_scratch() {
    local volume
    for volume in "${!SCRATCH[@]}"; do
        remove_tree "$(scratch_of "$volume")"
    done
    rmdir "/dev/shm/podbridge-${PWD##*/}" "$SCRATCH_AREA/podbridge-${PWD##*/}" 2>/dev/null
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

# add_mount KIND SOURCE SUBPATH MODE TARGET: one mount of a container, into FROM, TO and ACCESS, or
# volume, path in it and place into FUSED, where the runtime mounts it.
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
    if [[ $sub ]]; then
        real=$(readlink -m -- "$root/$sub")
        root=$(readlink -m -- "$root")
        [[ $real == "$root"/* ]] || return 1
        [[ -e $real || $kind == files ]] || mkdir -p -- "$real" || return 1
    fi
    [[ -e $real ]] || return 1
    FROM+=("$real") TO+=("$5") ACCESS+=("$4")
}
