# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# Volumes that a script of the pod's mounts at $MOUNT_POINT, outside of containers: run/fuse/<volume>, at fuse/<volume>.

FUSE_MODE='' FUSE_WAIT=0
declare -A FUSE_PID

# Mount all volumes; POD_MESSAGE is the error.
mount_fuse() {
    local volume
    [[ $FUSE_MODE ]] && return
    for volume in "${FUSE[@]}"; do
        mount_one "$volume" || return
    done
}

mount_one() {
    local volume=$1 log=run/fuse/$1.log code until
    mkdir -p "fuse/$volume" || return
    set -m
    MOUNT_POINT=$PWD/fuse/$volume SUB_PATH='' "$BASH" "run/fuse/$volume" </dev/null >"$log" 2>&1 &
    set +m
    FUSE_PID[$volume]=$!
    clock
    until=$((NOW + FUSE_WAIT))
    while ! mountpoint -q "fuse/$volume"; do
        if ! kill -0 "${FUSE_PID[$volume]}" 2>/dev/null; then
            wait "${FUSE_PID[$volume]}"
            code=$?
            if ((code)); then
                fuse_failed "$volume" "failed ($code)"
                return 1
            fi
        fi
        clock
        if ((NOW >= until)) || [[ $STOP_BY || -e control/stop ]]; then
            fuse_failed "$volume" "mounted nothing within $((FUSE_WAIT / 100)) s"
            return 1
        fi
        sleep 0.1
    done
}

# fuse_failed VOLUME HOW: the message has the script's last line, without characters that JSON does not allow.
fuse_failed() {
    local line
    line=$(tail -n 1 "run/fuse/$1.log" | tail -c 500)
    cat "run/fuse/$1.log"
    POD_MESSAGE="the script of volume $1 $2: ${line//[^A-Za-z0-9 .,:;_=\/()\'-]/}"
}

# Unmount all volumes, and kill the scripts with their children.
unmount_fuse() {
    local volume try
    for volume in "${!FUSE_PID[@]}"; do
        for try in 1 2 3; do
            mountpoint -q "fuse/$volume" || break
            unmount "fuse/$volume" || sleep 0.3
        done
        ! mountpoint -q "fuse/$volume" || unmount "fuse/$volume" lazily
        end_group "${FUSE_PID[$volume]}"
        rmdir "fuse/$volume"
    done
    FUSE_PID=()
} 2>/dev/null

unmount() {
    fusermount3 -u${2:+z} "$1" || fusermount -u${2:+z} "$1" || umount ${2:+-l} "$1"
}
