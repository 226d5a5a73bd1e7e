# (1, 1073741824, 0, '', 86400.0, ['--constraint', 'a b', '--exclusive'], 'small', 30.0)
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
SCRATCH_AREA=/data/work
WORKDIR_BELOW=(/data)
SCRATCH_HELD=1
FUSE=()
write_volumes() {
:
}
command_of() {
case $1 in
0) COMMAND=(sh -c solve) ;;
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
keep pre-exec 600 <<'PODBRIDGE_END' || return 1
bW9kdWxlIGxvYWQgbXBpCmV4cG9ydCBYPScxJwo=
PODBRIDGE_END
. ./run/pre-exec
}
IMAGES=(docker.io/library/busybox:1.36)
HAS_COMMAND=(1)
PULL=(IfNotPresent)
LOGIN=('')
EXTRA_PATHS=()
IMAGE_AREAS=(/images)
IMAGE_DIR=''
UNPACKED=''
CACHE_DIR=''
IMAGE_ROOT=docker://registry.example/
GPU_RESOURCE=''
MPI_ASKED=1
MPI_WORDS=(--map-by core)
RUNTIME=apptainer
OPTIONS=(--no-umask --no-eval --containall --no-home --no-privs --cleanenv --bind /cvmfs)
GPU_WORDS=()
WRITABLE_TMPFS=1
ROOT_FILESYSTEM=disk
FAKEROOT_USER=
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
