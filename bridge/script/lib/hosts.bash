# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# /etc/hosts of the containers of a pod with host aliases, or whose group is one job: the cluster's DNS is not here.

HOST_NAMES=() HOST_ALIASES=()

# make_hosts: write run/hosts: the members of the group, or this pod alone, the aliases, and what the machine knows, as
# containers share its network. Without a mount namespace, processes of the machine see only the machine's.
make_hosts() {
    local group=${PODBRIDGE_GROUP_FILE-}
    unset -v PODBRIDGE_GROUP_FILE # processes of the machine would inherit it
    ((${#HOST_NAMES[@]} + ${#HOST_ALIASES[@]})) || return 0
    if [[ ! ${NAMESPACE-other} ]]; then
        note 'this machine gives no mount namespace to users: the containers see its own /etc/hosts'
        return 0
    fi
    {
        if [[ $group ]]; then
            cat -- "$group" || return 1
        elif ((${#HOST_NAMES[@]})); then
            printf '%s\t%s\n' "$ADDRESS" "${HOST_NAMES[*]}"
        fi
        ((${#HOST_ALIASES[@]} == 0)) || printf '%s\n' "${HOST_ALIASES[@]}"
        cat /etc/hosts 2>/dev/null
    } >run/hosts
    # as a kubelet's: containers may have other users
    chmod 644 run/hosts
}

# add_hosts: one more mount of a container.
add_hosts() {
    [[ ! -e run/hosts ]] || add_mount own run/hosts '' ro /etc/hosts
}
