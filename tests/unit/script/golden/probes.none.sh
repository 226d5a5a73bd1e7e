# (1, 1073741824, 0, '', 86400.0, [], 'small', 5.0)
NAME=(main rpc)
KIND=(main main)
MEMORY=('' '')
FALLBACK=(1 '')
READONLY_ROOT=('' '')
RUN_AS=(: :)
NON_ROOT=('' '')
DIRECTORY=('' '')
NEEDS=(grpc https)
RESTART_POLICY=Always
GRACE=500
DEADLINE=
SCRATCH_AREA=''
FUSE=()
write_volumes() {
:
}
command_of() {
case $1 in
0) COMMAND=(sh -c serve) ;;
1) COMMAND=(sh -c rpc) ;;
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
add_mount own run/main.message '' rw /var/log/last || return 1 ;;
1) HELD=$PWD/run/rpc.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()
add_mount own run/rpc.message '' rw /dev/termination-log || return 1 ;;
esac
}
PROBE[0.startup]='0 1000 100 1 30 500'
probe_0_startup() {
probe_tcp "$ADDRESS" 80
}
PROBE[0.liveness]='0 1000 100 1 3 100'
probe_0_liveness() {
probe_http "$ADDRESS" 80 'GET /live?it'"'"'s=$(x) HTTP/1.1' 'Host: '"$ADDRESS":80 'Accept: */*' 'User-Agent: kube-probe/1' 'X-Token: `a`' 'Connection: close'
}
PROBE[0.readiness]='300 1000 100 1 3 500'
probe_0_readiness() {
runtime_exec 0 test -e '/tmp/it'"'"'s ready'
}
post_start_0() {
runtime_exec 0 touch /tmp/started
}
pre_stop_0() {
probe_https https://"$ADDRESS":443/stop 'Accept: */*' 'User-Agent: kube-probe/1'
}
PROBE[1.liveness]='0 1000 100 1 3 500'
probe_1_liveness() {
probe_grpc "$ADDRESS":9000 x
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
