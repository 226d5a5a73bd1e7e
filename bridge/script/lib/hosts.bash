# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034
# /etc/hosts of the containers of a pod with host aliases, or whose group is one job: the cluster's DNS is not here. And what
# an annotation requests for the members of a group: RENDEZVOUS_PORT for the variables of PyTorch, HOSTFILE for the file.

HOST_NAMES=() HOST_ALIASES=() RENDEZVOUS_PORT='' HOSTFILE=''

# make_hosts: write run/hosts: the members of the group, or this pod alone, the aliases, and what the machine knows, as
# containers share its network. Without a mount namespace, processes of the machine see only the machine's.
make_hosts() {
    local members=''
    if [[ ${PODBRIDGE_GROUP_FILE-} ]]; then
        members=$(<"$PODBRIDGE_GROUP_FILE") || return 1
    elif [[ ${HOST_NAMES[*]}$RENDEZVOUS_PORT$HOSTFILE ]]; then
        members=$ADDRESS$'\t'${HOST_NAMES[*]}
    fi
    unset -v PODBRIDGE_GROUP_FILE # processes of the machine would inherit it
    [[ ${HOST_NAMES[*]}${HOST_ALIASES[*]}$RENDEZVOUS_PORT$HOSTFILE ]] || return 0
    if [[ ${NAMESPACE-other} ]]; then
        {
            [[ ! $members ]] || printf '%s\n' "$members"
            ((${#HOST_ALIASES[@]} == 0)) || printf '%s\n' "${HOST_ALIASES[@]}"
            cat /etc/hosts 2>/dev/null
        } >run/hosts
        # as a kubelet's: containers may have other users
        chmod 644 run/hosts || return 1
    else
        note 'this machine gives no mount namespace to users: the containers see its own /etc/hosts'
    fi
    make_rendezvous "$members"
}

# make_rendezvous MEMBERS: export the variables, and write run/hostfile: a line for each rank. Where containers do not have
# run/hosts, addresses stand for the names.
make_rendezvous() {
    local address hosts names=()
    while read -r address hosts; do
        [[ -e run/hosts && $hosts ]] || hosts=$address
        names+=("${hosts%% *}")
    done <<<"$1"
    if [[ $RENDEZVOUS_PORT ]]; then
        RANK=${PODBRIDGE_GROUP_RANK:-0}
        # PET_: else no container, with its machine's name, is the host of torchrun's store
        export RANK MASTER_ADDR=${names[0]} MASTER_PORT=$RENDEZVOUS_PORT
        export WORLD_SIZE=${PODBRIDGE_GROUP_SIZE:-1} PET_RDZV_CONF=is_host=$((!RANK))
    fi
    [[ $HOSTFILE ]] || return 0
    printf '%s\n' "${names[@]}" >run/hostfile && chmod 644 run/hostfile || return 1
    export PODBRIDGE_GROUP_HOSTFILE=$HOSTFILE
    [[ -e run/hosts ]] || PODBRIDGE_GROUP_HOSTFILE=$PWD/run/hostfile
}

# add_own_file FILE TARGET: one more mount of a container, if its runtime has mounts.
add_own_file() {
    [[ ! -e $1 || ! ${NAMESPACE-other} ]] || add_mount own "$1" '' ro "$2"
}
