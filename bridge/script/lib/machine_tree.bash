# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The machine's tree with volumes, in a mount namespace, for containers without an image.

# make_root I: mount the volumes (FROM, TO, ACCESS) at their places. A folder of the machine in which such a place is missing
# is covered by a copy: a folder in memory where every entry of the folder is mounted, and the place is made. A copy of /
# becomes the root. Without one, all is mounted in the machine's tree, as this namespace has it.
make_root() {
    local k cover table
    AREA=$PWD/run/root TABLE=''
    PROBLEM='no new root'
    mount -t tmpfs -o mode=755 podbridge "$AREA" || return 1
    # private: no mount of this namespace propagates to the machine; unshare(1) has done it from util-linux 2.26 on
    mapfile -t table </proc/self/mountinfo
    [[ ${table[*]} != *' shared:'* ]] || mount --make-rprivate / || return 1
    find_places || return 1
    find_covers "$1"
    NEW=${COPY[/]-}
    [[ ! $NEW ]] || add_binds "$NEW" "$NEW" # only a mount can become the root
    for cover in "${COVERS[@]}"; do
        mirror "$cover" "${COPY[$cover]}"
    done
    make_places
    for cover in "${COVERS[@]}"; do
        [[ $cover == / ]] || add_binds "${COPY[$cover]}" "$NEW$cover"
    done
    if [[ ${READONLY_ROOT[$1]} ]]; then
        mount_table
        PROBLEM='the root file system can not be made read-only'
        read_only_tree || return 1
    fi
    for k in "${ORDER[@]}"; do
        [[ ${INNER[k]} ]] || add_binds "${FROM[k]}" "$NEW${PLACE[k]}"
    done
    mount_table
    for k in "${ORDER[@]}"; do
        PROBLEM=${TO[k]}
        attach "$k" || return 1
    done
    [[ $NEW ]] || return 0
    PROBLEM='no way into the new root'
    type -P pivot_root >/dev/null || PROBLEM+=': pivot_root is not installed'
    [[ ! ${READONLY_ROOT[$1]} ]] || mount -o remount,bind,ro "$NEW" || return 1
    # pivot_root(2): the old root is stacked on the new one, and umount . removes it
    cd "$NEW" && pivot_root . . && umount -l . && cd /
}

# find_places: PLACE are the mount points without links, ORDER their numbers, outer ones first. Those in another volume,
# INNER, are made by attach.
find_places() {
    local k other
    PLACE=() INNER=()
    for k in "${!TO[@]}"; do
        PROBLEM=${TO[k]} INNER[k]=''
        without_links "${TO[k]}" && [[ $RESULT != / ]] || return 1
        PLACE[k]=$RESULT
    done
    outer_first "${PLACE[@]}"
    for k in "${ORDER[@]}"; do
        for other in "${PLACE[@]}"; do
            [[ ${PLACE[k]} != "$other"/* ]] || INNER[k]=1
        done
    done
}

# without_links PATH: RESULT is the path without links; what it leads to need not exist.
without_links() {
    local at=$1
    if [[ $1/ != *//* && $1/ != */./* && $1/ != */../* ]]; then
        while [[ $at && ! -L $at ]]; do
            at=${at%/*}
        done
        RESULT=$1
        [[ $at ]] || return 0
    fi
    RESULT=$(exec readlink -m -- "$1") && [[ $RESULT ]]
}

# outer_first PATH...: ORDER are the numbers of the paths, each after those that it lies in.
outer_first() {
    local k n paths=("$@")
    ORDER=()
    for k in "${!paths[@]}"; do
        for ((n = k; n > 0; n--)); do
            [[ ${paths[k]} < "${paths[ORDER[n - 1]]}" ]] || break
            ORDER[n]=${ORDER[n - 1]}
        done
        ORDER[n]=$k
    done
}

# find_covers I: COVERS are the folders to cover, outer ones first, COPY the copy of each, and COVER the one for each place
# that is missing. The root is one of them if the machine's tree will not do: there, a source that is not in the job's
# directory may be below a place, and so may the directory itself.
find_covers() {
    local k folder order=() folders=()
    local -A covered=()
    [[ ! ${READONLY_ROOT[$1]} ]] || covered[/]=1
    COVER=() COVERS=() COPY=()
    for k in "${ORDER[@]}"; do
        COVER[k]='' folder=${PLACE[k]}
        if [[ ! ${INNER[k]} && ! -e $folder ]]; then
            while [[ ! -d ${folder:=/} ]]; do
                folder=${folder%/*}
            done
            COVER[k]=$folder covered[$folder]=1
        fi
        [[ ! -L ${FROM[k]} && $PWD/ != "${folder%/}"/* ]] || covered[/]=1
    done
    order=("${ORDER[@]}") folders=("${!covered[@]}")
    outer_first "${folders[@]}"
    for k in "${ORDER[@]}"; do
        COVERS+=("${folders[k]}")
        COPY[${folders[k]}]=$AREA/$k
    done
    ORDER=("${order[@]}")
}

# mirror FOLDER COPY: make the copy, and add a mount of each entry of the folder. An entry that can't be mounted (not
# permitted, or removed meanwhile) is empty. The consoles of the machine, most of what /dev has, are no devices of a job, nor
# are those that its user may not open.
mirror() {
    local entry place k folders=("$2") files=() links=() binds=() GLOBIGNORE='/dev/tty[0-9]*:/dev/vcs*[0-9]*'
    shopt -s dotglob nullglob
    for entry in "${1%/}"/*; do
        if [[ -L $entry ]]; then
            links+=("$entry")
            continue
        elif [[ (-b $entry || -c $entry) && ! -r $entry && ! -w $entry ]]; then
            continue
        fi
        place=$2/${entry##*/}
        if [[ -d $entry ]]; then
            folders+=("$place")
        else
            files+=("$place")
        fi
        binds+=("$entry" "$place")
    done
    shopt -u dotglob nullglob
    add_binds "${binds[@]}"
    # not all names of a large folder fit into one command line
    for ((k = 0; k < ${#folders[@]}; k += 500)); do
        mkdir -- "${folders[@]:k:500}"
    done
    for ((k = 0; k < ${#links[@]}; k += 500)); do
        cp -P -t "$2" -- "${links[@]:k:500}"
    done
    for entry in "${files[@]}"; do
        : >"$entry"
    done
    # who uses a copy also owns it, so no other permission matters; some programs want a sticky /tmp
    [[ ! -k $1 ]] || chmod 1777 -- "$2"
}

# make_places: make the mount points in the copies.
make_places() {
    local k place folders=() files=()
    for k in "${ORDER[@]}"; do
        [[ ${COVER[k]} ]] || continue
        place=${COPY[${COVER[k]}]}/${PLACE[k]#"${COVER[k]%/}/"}
        if [[ ! -d ${FROM[k]} ]]; then
            files+=("$place")
            place=${place%/*}
        fi
        [[ -d $place ]] || folders+=("$place")
    done
    ((${#folders[@]} == 0)) || mkdir -p -- "${folders[@]}"
    for place in "${files[@]}"; do
        : >"$place"
    done
}

# add_binds [SOURCE PLACE]...: add lines to TABLE, as in fstab(5).
add_binds() {
    local IFS='' path paths=() lines
    (($#)) || return 0
    if [[ $* == *[\\$' \t\n']* ]]; then
        for path; do
            escape "$path"
            paths+=("$RESULT")
        done
        set -- "${paths[@]}"
    fi
    printf -v lines '%s %s none rbind 0 0\n' "$@"
    TABLE+=$lines
}

# escape PATH: RESULT is the path as in fstab(5) and in /proc/self/mountinfo.
escape() {
    RESULT=${1//\\/\\134}
    RESULT=${RESULT// /\\040}
    RESULT=${RESULT//$'\t'/\\011}
    RESULT=${RESULT//$'\n'/\\012}
}

# mount_table: one process mounts all of TABLE.
mount_table() {
    printf '%s' "$TABLE" >"$AREA/table"
    TABLE=''
    mount -a -T "$AREA/table" 2>/dev/null
}

# attach K: a volume is to be at its place, or is mounted there now.
attach() {
    local place=$NEW${PLACE[$1]}
    if [[ ${INNER[$1]} ]]; then
        if [[ -d ${FROM[$1]} ]]; then
            place_for_folder "${NEW:-/}" "${PLACE[$1]}"
        else
            place_for_file "${NEW:-/}" "${PLACE[$1]}"
        fi && mount --rbind -- "${FROM[$1]}" "$place" || return 1
    fi
    [[ ${FROM[$1]} -ef $place ]] || return 1
    [[ ${ACCESS[$1]} != ro ]] || { find_flags "$place" && read_only_mount "$place" "$RESULT"; }
}

# find_flags PLACE: RESULT are the flags of the mount; empty if the place has links, which the kernel's table does not show.
find_flags() {
    local line rows place options found=''
    escape "$1"
    mapfile -t rows </proc/self/mountinfo
    for line in "${rows[@]}"; do
        [[ $line == *" $RESULT "* ]] || continue
        read -r _ _ _ _ place options _ <<<"$line"
        [[ $place != "$RESULT" ]] || found=$options # the last mount covers the others
    done
    RESULT=$found
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
