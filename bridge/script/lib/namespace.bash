# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# The namespaces that this machine gives to containers without an image.

# The launcher of a group finds out once for all pods of a machine.
KNOWN_NAMESPACE=${PODBRIDGE_NAMESPACE-unknown}
unset -v PODBRIDGE_NAMESPACE

# find_namespace: NAMESPACE: whether containers get mount namespaces, as root or in a user namespace; MAPS_USER: whether
# unshare(1) can give back the user's own id there.
find_namespace() {
    local help
    NAMESPACE='' MAPS_USER=''
    if [[ $KNOWN_NAMESPACE != unknown ]]; then
        read -r NAMESPACE MAPS_USER <<<"$KNOWN_NAMESPACE"
    elif ((UID == 0)) && (exec unshare -m true) 2>/dev/null; then
        NAMESPACE=root
    elif help=$(exec unshare -U -r -m -- unshare --help 2>/dev/null); then
        NAMESPACE=user
        [[ $help != *' --map-user'[=\ ]* ]] || MAPS_USER=1
    fi
}
