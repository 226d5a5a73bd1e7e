# Sourced by the entrypoint of a node: the kubelet writes these settings of the kernel, which are those of the machine.
for setting in kernel/keys/root_maxbytes kernel/keys/root_maxkeys kernel/panic kernel/panic_on_oops \
    vm/overcommit_memory vm/panic_on_oom; do
    copy=/kind/setting-${setting//\//-}
    cat "/proc/sys/$setting" >"$copy"
    mount --bind "$copy" "/proc/sys/$setting"
done
