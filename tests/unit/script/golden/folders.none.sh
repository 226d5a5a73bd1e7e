# (1, 1073741824, 0, '', 86400.0, [], 'small', 30.0)
NAME=(main)
KIND=(main)
MEMORY=('')
FALLBACK=('')
READONLY_ROOT=('')
RUN_AS=(:)
NON_ROOT=('')
DIRECTORY=('/disk/my work')
NEEDS=()
RESTART_POLICY=OnFailure
GRACE=3000
DEADLINE=
SCRATCH_AREA=''
SCRATCH[disk]=disk
SIZE_LIMIT[disk]=1048576
SCRATCH[fast]=memory
FUSE=()
HOST_AREAS=(/data)
HOST_PATH[data]=/data/set HOST_TYPE[data]=Directory
write_volumes() {
:
}
command_of() {
case $1 in
0) COMMAND=(sh -c 'ls /data') ;;
esac
}
variables_of() {
case $1 in
0) VARIABLES=(HOSTNAME pod WHO me) ;;
esac
}
mounts_of() {
case $1 in
0) HELD=$PWD/run/main.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount scratch disk '' rw /disk || return 1
add_mount scratch fast '' rw /fast || return 1
add_mount host data '' ro /data shared || return 1
add_mount scratch disk users/me rw /disk/mine || return 1
add_mount own run/main.message '' rw /dev/termination-log || return 1 ;;
esac
}
tail_of_script() {
:
echo the end
}
before_all() {
:
}
LC_ALL=C
case ${1-} in
inside)
    shift
    inside "$@"
    ;;
leftovers) leftovers ;;
session | console | connector)
    "$@"
    ;;
*) main ;;
esac
