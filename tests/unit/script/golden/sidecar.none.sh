# (1, 1073741824, 0, '', 86400.0, [], 'small', 30.0)
NAME=(proxy main other)
KIND=(sidecar main main)
MEMORY=('' '' '')
FALLBACK=('' '' '')
READONLY_ROOT=('' '' '')
RUN_AS=(: : :)
NON_ROOT=('' '' '')
DIRECTORY=('' '' '')
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
0) COMMAND=(sh -c serve) ;;
1) COMMAND=(sh -c 'echo main') ;;
2) COMMAND=(sh -c 'echo other') ;;
esac
}
variables_of() {
case $1 in
0) VARIABLES=(HOSTNAME pod) ;;
1) VARIABLES=(HOSTNAME pod) ;;
2) VARIABLES=(HOSTNAME pod) ;;
esac
}
mounts_of() {
case $1 in
0) HELD=$PWD/run/proxy.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/proxy.message '' rw /dev/termination-log || return 1 ;;
1) HELD=$PWD/run/main.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/main.message '' rw /dev/termination-log || return 1 ;;
2) HELD=$PWD/run/other.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/other.message '' rw /dev/termination-log || return 1 ;;
esac
}
PROBE[0.startup]='0 100 100 1 3 3000'
probe_0_startup() {
probe_http "$ADDRESS" 8080 'GET /up HTTP/1.1' 'Host: '"$ADDRESS":8080 'Accept: */*' 'User-Agent: kube-probe/1' 'Connection: close'
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
