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
mkdir -p volumes/settings volumes/login volumes/about volumes/kube-api-access
put settings/app.ini 440 <<'PODBRIDGE_END' || return 1
W2FwcF0KbmFtZSA9IGl0J3MK
PODBRIDGE_END
put settings/LEVEL 440 <<'PODBRIDGE_END' || return 1
Mw==
PODBRIDGE_END
put settings/raw 440 <<'PODBRIDGE_END' || return 1
AP8=
PODBRIDGE_END
put login/a/b 644 <<'PODBRIDGE_END' || return 1
bWU=
PODBRIDGE_END
put about/l 644 <<'PODBRIDGE_END' || return 1
YXBwPSJ4Ig==
PODBRIDGE_END
put kube-api-access/token 644 <<'PODBRIDGE_END' || return 1
aGVhZGVyLnBheWxvYWQuc2lnbmF0dXJl
PODBRIDGE_END
put kube-api-access/ca.crt 644 <<'PODBRIDGE_END' || return 1
LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUIKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0t
LQo=
PODBRIDGE_END
put kube-api-access/namespace 644 <<'PODBRIDGE_END' || return 1
dGVhbQ==
PODBRIDGE_END
}
command_of() {
case $1 in
0) COMMAND=(sh -c 'cat /etc/app/*') ;;
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
add_mount files settings '' ro /etc/app || return 1
add_mount files settings app.ini ro /etc/app.ini || return 1
add_mount files login '' ro /etc/login || return 1
add_mount files about '' ro /etc/about || return 1
add_mount own run/main.message '' rw /dev/termination-log || return 1
add_mount files kube-api-access '' ro /var/run/secrets/kubernetes.io/serviceaccount || return 1 ;;
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
