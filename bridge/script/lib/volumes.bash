# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Files and folders of volumes.

declare -A SIZE_LIMIT SCRATCH
declare -a BEFORE LEAVE

# put PATH MODE: write standard input, base64, to volumes/PATH. What the hub sends meanwhile is newer: a file that is there
# stays, one that replaces this one is not written to, and one that volumes/.files, the names that a volume still has,
# does not list is removed. The hub's list is written before it removes anything, so either side sees the other's.
put() {
    local file list=volumes/.files/${1%%/*}
    mkdir -p -- "volumes/${1%/*}"
    set -C
    if ! { exec {file}>"volumes/$1"; } 2>/dev/null; then
        set +C
        [[ -e volumes/$1 ]]
        return
    fi
    set +C
    base64 -d >&"$file" && chmod "$2" "volumes/$1" || return 1
    exec {file}>&-
    [[ ! -e $list ]] || grep -qxF -e "${1#*/}" "$list" || rm -f -- "volumes/$1"
}

# keep PATH MODE: write standard input, base64, to run/PATH, which no container sees.
keep() {
    mkdir -p -- "run/$(dirname -- "$1")"
    base64 -d >"run/$1" && chmod "$2" "run/$1"
}

# make_area FILE FOLDER [AREA...]: make a folder of this job's own in one that others may write to, and note its real path
# in FILE. Nobody can have made it before, as its name is random and it is made in one step; nobody can put another in its
# place later. With areas, a pod has named FOLDER.
make_area() (
    file=$PWD/$1 name=podbridge-${PWD##*/}
    if (($# > 2)); then
        enter_host "$2" DirectoryOrCreate "${@:3}"
    else
        cd -P -- "$2"
    fi || exit 1
    read -r owner mode < <(stat -c '%u %a' -- .) || exit 1
    if [[ $owner != 0 && $owner != "$UID" ]] || (((8#$mode & 8#1002) == 2)); then
        note "$2: not used for volumes: it must belong to root or to this user, and be sticky where everybody may write"
        exit 1
    fi
    name=$(mktemp -d -- "./$name.XXXXXXXX") && cd -P -- "$name" && readlink /proc/self/cwd >"$file"
)

# scratch/<volume> is an emptyDir, or a link to it.
make_scratch() {
    local volume area disk=$PWD/scratch memory=''
    ((${#SCRATCH[@]})) || return 0
    if [[ $SCRATCH_AREA ]]; then
        make_area run/disk.area "$SCRATCH_AREA" "${WORKDIR_BELOW[@]}" || return 1
        disk=$(<run/disk.area)
    fi
    if [[ " ${SCRATCH[*]} " == *' memory '* && -w /dev/shm ]]; then
        make_area run/memory.area /dev/shm || return 1
        memory=$(<run/memory.area)
    fi
    for volume in "${!SCRATCH[@]}"; do
        area=$disk
        [[ ${SCRATCH[$volume]} != memory || ! $memory ]] || area=$memory
        mkdir -p -- "$area/$volume" && chmod 777 -- "$area/$volume" || return 1
        [[ $area == "$PWD/scratch" ]] || ln -s -- "$area/$volume" "scratch/$volume" || return 1
    done
}

remove_scratch() {
    local volume file area
    for file in run/memory.area run/disk.area; do
        [[ -s $file ]] || continue
        area=$(<"$file")
        # another folder may stand there by now
        (cd -P -- "$area" && [[ $(readlink /proc/self/cwd) == "$area" ]] &&
            for volume in "${!SCRATCH[@]}"; do
                remove_tree "./$volume"
            done)
        rmdir -- "$area" && rm -f "$file"
    done 2>/dev/null
    for volume in "${!SCRATCH[@]}"; do
        remove_tree "scratch/$volume"
    done
}

remove_tree() {
    rm -rf -- "$1" 2>/dev/null && return
    chmod -R u+rwx -- "$1" 2>/dev/null
    rm -rf -- "$1" 2>/dev/null || runtime_remove "$1"
}

# enter ROOT PATH [MAKE]: change to PATH, which is ROOT or in it, both without links. If PATH is no folder, change to the
# folder that it is in; LEAF is then its name. No link is followed, not even one that is created meanwhile: after each step
# the place that was reached is compared. What is missing is made as MAKE says: folders, or a file at the end.
enter() {
    local at=$1 rest=${2#"${1%/}"}/ part
    LEAF=''
    cd -P -- "$1" && [[ $(readlink /proc/self/cwd) == "$1" ]] || return 1
    while [[ $rest ]]; do
        part=${rest%%/*} rest=${rest#*/}
        [[ $part && $part != . ]] || continue
        if [[ ${3-} && ! -e ./$part && ! -L ./$part ]]; then
            if [[ $3 == file ]]; then
                [[ $rest ]] || (set -C && umask 022 && : >"./$part")
            else
                mkdir -m 755 -- "./$part"
            fi || return 1
        fi
        if [[ ! $rest && ! -d ./$part ]]; then
            LEAF=$part
            [[ -e ./$part ]]
            return
        fi
        cd -P -- "./$part" || return 1
        at=${at%/}/$part
        [[ $(readlink /proc/self/cwd) == "$at" ]] || return 1
    done
} 2>/dev/null

# place_for_folder ROOT PATH: create a directory and its parents; follow no link, not even one created meanwhile.
place_for_folder() (
    root=$(readlink -e -- "$1") && enter "$root" "${root%/}/$2" folders && [[ ! $LEAF ]]
)

# place_for_file ROOT PATH: the same for a file.
place_for_file() {
    place_for_folder "$1" "${2%/*}" || return 1
    [[ -L $1$2 ]] && return 1
    [[ -e $1$2 ]] || : >"$1$2"
}

# is_in PATH FOLDER
is_in() { [[ $1 == "$2" || $1 == "${2%/}"/* ]]; }

# enter_host PATH TYPE AREA...: enter a path of the machine that a pod has named; REAL is where it leads, which must be in
# one of the areas.
enter_host() {
    local area make=''
    REAL=$(readlink -m -- "$1") || return 1
    case $2 in
    DirectoryOrCreate) make=folders ;;
    FileOrCreate) make='file' ;;
    esac
    for area in "${@:3}"; do
        area=$(readlink -e -- "$area") || continue
        is_in "$REAL" "$area" || continue
        [[ -d $area ]] || area=${area%/*}
        enter "${area:-/}" "$REAL" "$make" || return 1
        area=./$LEAF
        case $2 in
        Directory*) [[ ! $LEAF ]] ;;
        File*) [[ $LEAF && -f $area ]] ;;
        Socket) [[ -S $area ]] ;;
        CharDevice) [[ -c $area ]] ;;
        BlockDevice) [[ -b $area ]] ;;
        esac
        return
    done
    return 1
}

# enter_volume KIND VOLUME SUBPATH: enter a part of a volume; folders that are missing in it are made.
enter_volume() {
    local root areas=("${HOST_AREAS[@]}")
    case $1 in
    host)
        [[ ! ${HOST_FREE[$2]-} ]] || areas=(/)
        enter_host "${HOST_PATH[$2]}" "${HOST_TYPE[$2]}" "${areas[@]}" || return 1
        root=$REAL
        ;;
    scratch) root=$(readlink -- "scratch/$2") || root=$(readlink -e -- "scratch/$2") ;;
    fuse) root=$(readlink -e -- "fuse/$2") ;;
    esac || return 1
    [[ $1 != host || $3 ]] || return 0
    REAL=$(readlink -m -- "$root/$3") && is_in "$REAL" "$root" && enter "$root" "$REAL" folders
}

# host_paths: whether every hostPath volume can be used. Each container looks again when it starts.
host_paths() {
    local volume
    for volume in "${!HOST_PATH[@]}"; do
        (enter_volume host "$volume" '') || return 1
    done
}

mounts_or_cannot() {
    mounts_of "$1" && link_mounts && return
    cannot "${NAME[$1]}" 128 CreateContainerConfigError \
        'a volume has nothing at its subPath, or the subPath leads out of it'
}

# add_mount KIND VOLUME SUBPATH MODE TARGET [shared]: one mount of a container, into FROM, TO and ACCESS, or volume, path in
# it and place into FUSED, where the runtime mounts it. FROM is a path that the script itself has named: runtimes give a
# meaning to characters that paths of pods and machines may have. Where such a path leads elsewhere, LINKED (see link_mounts) or
# SHARED (see hold_mounts) has kind, volume and path in it, by the number of the mount.
add_mount() {
    local k=${#FROM[@]}
    case $1 in
    files) FROM[k]=$PWD/volumes/$2 ;;
    scratch) FROM[k]=$PWD/scratch/$2 ;;
    own) FROM[k]=$PWD/$2 ;;
    fuse)
        if [[ $FUSE_MODE ]]; then
            FUSED+=("$2" "$3" "$5")
            return
        fi
        FROM[k]=$PWD/fuse/$2
        ;;
    esac
    TO[k]=$5 ACCESS[k]=$4
    if [[ ${6-} || ($1 == scratch && $SCRATCH_HELD) ]]; then
        SHARED[k]=$1/$2/$3 FROM[k]=$HELD.$k
    elif [[ $1 == host || $3 ]]; then
        LINKED[k]=$1/$2/$3 FROM[k]=$HELD.$k
    fi
}

# link_mounts: make a link to each part of a volume that nobody changes before it is mounted. Links that lead out of the
# volume are not followed.
link_mounts() {
    local k kind volume real root
    for k in "${!FROM[@]}"; do
        if [[ ${LINKED[k]-} ]]; then
            IFS=/ read -r kind volume real <<<"${LINKED[k]}"
            if [[ $kind == files ]]; then
                root=$(readlink -e -- "volumes/$volume") && real=$(readlink -e -- "$root/$real") && is_in "$real" "$root"
            else
                real=$(enter_volume "$kind" "$volume" "$real" && printf '%s' "$REAL")
            fi || return 1
            # a command beside the container finds the links of the container
            [[ $(readlink -- "${FROM[k]}") == "$real" ]] || ln -sfn -- "$real" "${FROM[k]}" || return 1
        fi
        [[ ${SHARED[k]-} || -e ${FROM[k]} ]] || return 1
    done
}

# hold_mounts: to be called in a mount namespace of the container's own. What stands in SHARED is entered and mounted from
# there at FROM, which no container can reach. So nothing that is done to the volume meanwhile changes what the container
# gets.
hold_mounts() {
    local k kind volume path
    for k in "${!SHARED[@]}"; do
        IFS=/ read -r kind volume path <<<"${SHARED[k]}"
        (enter_volume "$kind" "$volume" "$path" && hold_here "${FROM[k]}") || return 1
    done
}

# hold_here PLACE: mount at PLACE what was entered. A file may be another by the time that it is mounted, but what is mounted
# stays: it must be what has the name, and not what a link of this name leads to.
hold_here() {
    # without -c, mount would look up the path of this folder, and mount what is there by then
    if [[ ! $LEAF ]]; then
        mkdir -p -- "$1" && mount -c --rbind -- . "$1"
    else
        : >>"$1" && mount -c --bind -- "./$LEAF" "$1" &&
            [[ $(stat -c %d:%i -- "./$LEAF") == "$(stat -c %d:%i -- "$1")" ]]
    fi
}

# release_mounts NAME: the places of what was held; nothing is mounted there outside of the container's namespace.
release_mounts() {
    local places=("run/$1".held.*)
    [[ -e ${places[0]} || -L ${places[0]} ]] || return 0
    rm -f "${places[@]}"
    rmdir "${places[@]}"
} 2>/dev/null

# into_namespace I WORD...: become BEFORE job.sh inside I WORD..., root of a user and a mount namespace of its own. What
# the machine mounts later, as automounters do, comes in.
into_namespace() {
    local words=(-U -r -m)
    unshare --help 2>/dev/null | grep -q -e --propagation && words+=(--propagation slave)
    { unshare --help 2>/dev/null | grep -q -e '--map-user[= ]' && unshare "${words[@]}" -- true; } ||
        cannot "${NAME[$1]}" 128 'CreateContainerConfigError permanent' \
            'a hostPath volume, or the subPath of a volume that others write to, needs user namespaces and unshare --map-user (util-linux 2.36 or newer)'
    export PODBRIDGE_ADDRESS=$ADDRESS OWN_UID=$UID OWN_GID=${GROUPS[0]}
    exec "${BEFORE[@]}" unshare "${words[@]}" -- "$BASH" "$PWD/job.sh" inside "$@"
}

# leave_namespace: BEFORE, and LEAVE, are what makes a command the user it was again, out of reach of the mounts.
leave_namespace() {
    LEAVE=(unshare "--map-user=$OWN_UID" "--map-group=$OWN_GID" --)
    BEFORE=("${LEAVE[@]}")
    unset -v OWN_UID OWN_GID
}

NOT_HELD='a volume could not be mounted: its path leads out of the folders that this site allows, its subPath leads out of the volume, or there is nothing of its type'

# hold_or_cannot I: as hold_mounts, ending the start of the container.
hold_or_cannot() {
    hold_mounts || cannot "${NAME[$1]}" 128 CreateContainerConfigError "$NOT_HELD"
}
