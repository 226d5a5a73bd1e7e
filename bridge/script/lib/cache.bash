# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Pulled images are files in the site's cache: <key>/image and <key>/name. A job has a hard link to the file, so the
# container keeps an image that is removed from the cache. Locks are separate files, which are never removed.

CACHE=../../image-cache KEY='' LOCK='' NEW=''
PULL_WAIT=${PODBRIDGE_PULL_WAIT_SECONDS:-1800}

# fetch_image I FILE: write IMAGE to FILE, from the cache or by the runtime's function pull_image TO NAME.
fetch_image() {
    local i=$1 file=$2 name=${NAME[$1]}
    [[ ${PULL[i]} == Always || ! -e $file ]] || return 0
    : >"run/$name.asked"
    KEY=''
    [[ ! -e $CACHE/on ]] || make_key "$i"
    [[ $KEY && ${PULL[i]} != Always ]] && take_image "$file" && return
    [[ ${PULL[i]} != Never ]] || never_pulled "$name"
    if [[ $KEY ]] && lock_key "$name" "$KEY"; then
        # a pull that began after this container had asked is as good as one of its own
        if ! { [[ ${PULL[i]} != Always || $CACHE/$KEY/name -nt run/$name.asked ]] && take_image "$file"; }; then
            pull_into_cache "$name" "$file"
        fi
        unlock_key
    else
        pull_image_to "$name" "$file"
    fi
}

# never_pulled NAME
never_pulled() {
    cannot "$1" 128 ErrImageNeverPull "the image $IMAGE is not at this site, and imagePullPolicy is Never"
}

# make_key I: KEY is the same for the same image in the same FORMAT, pulled with the same login. A digest is a name
# where the client of a registry verifies it.
make_key() {
    local reference=${IMAGE#docker://}
    [[ ($reference == *://* && $reference != oras://*) || ! $reference =~ @(sha256:[0-9a-f]{64})$ ]] ||
        reference=${reference%"${reference#*://}"}${BASH_REMATCH[1]}
    KEY=$(printf '%s\0' 1 "$FORMAT" "$(uname -m)" "$reference" "${LOGIN[$1]}" | sha256sum)
    KEY=${KEY%% *}
    [[ $KEY =~ ^[0-9a-f]{64}$ ]] || KEY=''
}

# take_image FILE: link the image in the cache to FILE, if it exists, and set its time, which is that of its last use.
take_image() {
    local image=$CACHE/$KEY/image
    rm -f -- "$1"
    link_or_copy "$image" "$1" && touch -c -- "$image"
} 2>/dev/null

# link_or_copy FROM TO: some file systems have no links between directories.
link_or_copy() {
    ln -- "$1" "$2" || { [[ -e $1 ]] && cp --reflink=auto -- "$1" "$2.new" && mv -f -- "$2.new" "$2"; }
} 2>/dev/null

# lock_key NAME WORD: hold the lock of WORD at descriptor LOCK. Without the lock in time (a pull that hangs, a file
# system without locks) a container does not use the cache.
lock_key() {
    { mkdir -p -- "$CACHE/locks" && exec {LOCK}>>"$CACHE/locks/${2:0:3}"; } 2>/dev/null || {
        LOCK=''
        return 1
    }
    flock -n "$LOCK" 2>/dev/null && return
    progress "$1" "waiting until another pod has pulled image $IMAGE"
    interruptible flock -w "$PULL_WAIT" "$LOCK" && return
    unlock_key
    return 1
}

unlock_key() {
    exec {LOCK}>&-
    LOCK=''
}

# pull_into_cache NAME FILE: the caller holds the lock. Remove files of a killed pull; rename a file when it is complete.
pull_into_cache() {
    local at=$CACHE/$KEY
    if ! { mkdir -p -- "$at" && rm -rf -- "$at"/new.* && NEW=$(mktemp -d -- "$at/new.XXXXXX"); } 2>/dev/null; then
        pull_image_to "$1" "$2"
        return
    fi
    # its time is that of the beginning of the pull
    printf '%s\n' "$IMAGE" >"$NEW/name"
    pull_image_to "$1" "$NEW/image"
    chmod 400 "$NEW/image"
    sync -- "$NEW/image" 2>/dev/null
    if cmp -s -- "$NEW/image" "$at/image" && take_image "$2"; then
        :
    elif rm -f -- "$2" && link_or_copy "$NEW/image" "$2"; then
        mv -f -- "$NEW/image" "$at/image"
    else
        printf 'no room in the job'\''s folder\n' >"run/$1.pull"
        drop_new
        pull_failed "$1" "run/$1.pull"
    fi
    mv -f -- "$NEW/name" "$at/name"
    drop_new
}

# pull_image_to NAME FILE
pull_image_to() {
    progress "$1" "pulling image $IMAGE"
    rm -f -- "$2"
    if ! interruptible pull_apart "$2" "$1" >"run/$1.pull" 2>&1; then
        drop_new
        pull_failed "$1" "run/$1.pull"
    fi
}

# Only this process holds the lock, not its children: they are killed, or their result is not used.
pull_apart() {
    [[ ! $LOCK ]] || exec {LOCK}>&-
    pull_image "$@"
}

drop_new() {
    [[ ! $NEW ]] || rm -rf -- "$NEW"
    NEW=''
}

# interruptible WORDS...: run a command; SIGTERM ends it, its children and this process.
interruptible() {
    local code
    trap 'family "$BASHPID"; kill -KILL "${FAMILY[@]:1}" 2>/dev/null; drop_new; exit 143' TERM
    "$@" </dev/null &
    wait "$!"
    code=$?
    trap - TERM
    return "$code"
}

# progress NAME TEXT: set what a container waits for, in its status.
progress() {
    printf '%s' "$2" >"run/$1.progress.new" && mv -f "run/$1.progress.new" "run/$1.progress"
    [[ -p run/waker ]] && printf . 1<>run/waker
} 2>/dev/null
