#!/bin/bash
# Writes the CNI network of this node's pods, and keeps the routes to the pods of the other nodes.
set -u
file=/etc/cni/net.d/10-kind.conflist
fields='{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}'
while true; do
    kubectl get nodes --output "jsonpath={range .items[*]}$fields{\"\\n\"}{end}" |
        while read -r name pods address; do
            [[ -n ${address:-} ]] || continue # a node without a range of addresses of pods yet
            if [[ $name != "$NODE_NAME" ]]; then
                ip route replace "$pods" via "$address"
            elif [[ ! -e $file ]]; then
                sed "s|@PODS@|$pods|" /usr/local/share/network.json >"$file.tmp"
                mv "$file.tmp" "$file"
            fi
        done
    sleep 2
done
