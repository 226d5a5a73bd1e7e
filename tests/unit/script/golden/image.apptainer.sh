# (1, 1073741824, 0, '', 86400.0, [], 'small', 30.0)
NAME=(main other)
KIND=(main main)
MEMORY=('' '')
FALLBACK=('' '')
READONLY_ROOT=('' 1)
RUN_AS=(1000:1000 1000:1000)
NON_ROOT=(1 1)
DIRECTORY=('' '')
NEEDS=()
RESTART_POLICY=Never
GRACE=3000
DEADLINE=
SCRATCH_AREA=''
FUSE=()
write_volumes() {
:
keep docker/config.json 600 <<'PODBRIDGE_END' || return 1
eyJhdXRocyI6IHsicmVnaXN0cnkuZXhhbXBsZSI6IHsidXNlcm5hbWUiOiAidSIsICJwYXNzd29y
ZCI6ICJwIiwgImF1dGgiOiAiZFRwdyJ9fX0=
PODBRIDGE_END
}
command_of() {
case $1 in
0) COMMAND=(--help) ;;
1) COMMAND=() ;;
esac
}
variables_of() {
case $1 in
0) VARIABLES=(HOSTNAME pod) ;;
1) VARIABLES=(HOSTNAME pod) ;;
esac
}
mounts_of() {
case $1 in
0) HELD=$PWD/run/main.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/main.message '' rw /dev/termination-log || return 1 ;;
1) HELD=$PWD/run/other.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/other.message '' rw /dev/termination-log || return 1 ;;
esac
}
tail_of_script() {
:
echo the end
}
before_all() {
:
}
IMAGES=(registry.example/team/tool:2 /images/other.sif)
HAS_COMMAND=('' '')
PULL=(IfNotPresent Always)
LOGIN=(8500ef10a7b89661f6a6f95554ef198aba2dc92fdd194c6f26fac5ddaeeadf4e '')
EXTRA_PATHS=()
IMAGE_AREAS=(/images)
IMAGE_DIR=''
UNPACKED=''
CACHE_DIR=''
IMAGE_ROOT=docker://
GPU_RESOURCE=''
MPI_ASKED=
MPI_WORDS=()
RUNTIME=apptainer
OPTIONS=(--no-umask --no-eval --containall --no-home --no-privs --cleanenv)
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
