# (1, 1073741824, 0, '', 86400.0, [], 'small', 30.0)
NAME=(main)
KIND=(main)
MEMORY=('')
FALLBACK=('')
READONLY_ROOT=('')
RUN_AS=(:)
NON_ROOT=('')
DIRECTORY=('')
NEEDS=()
RESTART_POLICY=Never
GRACE=3000
DEADLINE=
SCRATCH_AREA=''
FUSE=()
write_volumes() {
:
}
command_of() {
case $1 in
0) COMMAND=(sh -c 'echo hello') ;;
esac
}
variables_of() {
case $1 in
0) VARIABLES=(HOSTNAME pod) ;;
esac
}
mounts_of() {
case $1 in
0) HELD=$PWD/run/main.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
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
session | console | connector | reach)
    "$@"
    ;;
*) main ;;
esac
