#!/usr/bin/env bash
# Starts a whole Slurm in this container, and ends when one of its daemons ends.
#
# NODES   names of the nodes (node-0 node-1)
# CPUS    CPUs of each node (64)
# MEMORY  MiB of each node (64000)
# HOST    address at which slurmctld listens (127.0.0.1)
#
# /etc/slurm (a volume) gets the configuration, slurm.key and jwt_hs256.key, unless they are there, and slurm.jwt, a
# token of SlurmUser for slurmrestd.
set -euo pipefail

read -r -a nodes <<<"${NODES:-node-0 node-1}"
etc=/etc/slurm
mkdir -p "$etc" /run/slurm /var/spool/slurmctld
chown slurm:slurm /run/slurm /var/spool/slurmctld
chmod 755 "$etc"
for name in slurm jwt_hs256; do
    [[ -s $etc/$name.key ]] || head -c 1024 /dev/urandom >"$etc/$name.key"
    # a mounted Secret is read-only
    chown slurm:slurm "$etc/$name.key" 2>/dev/null || true
    chmod 600 "$etc/$name.key" 2>/dev/null || true
done

{
    cat <<END
ClusterName=test
SlurmctldHost=localhost(${HOST:-127.0.0.1})
SlurmctldPort=6817
SlurmUser=slurm
AuthType=auth/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=$etc/jwt_hs256.key
CredType=cred/slurm
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmdParameters=config_overrides
LogTimeFormat=iso8601_ms,format_stderr
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    port=17000
    for node in "${nodes[@]}"; do
        echo "NodeName=$node NodeHostname=localhost NodeAddr=127.0.0.1 Port=$port CPUs=${CPUS:-64} RealMemory=${MEMORY:-64000}"
        port=$((port + 1))
    done
} >"$etc/slurm.conf"
echo "CgroupPlugin=disabled" >"$etc/cgroup.conf"

slurmctld -D &
for node in "${nodes[@]}"; do
    slurmd -D -N "$node" &
done
until scontrol ping | grep -q UP; do sleep 0.2; done
scontrol token username=slurm lifespan=31536000 | sed 's/^SLURM_JWT=//' >"$etc/slurm.jwt"
# slurmrestd refuses to run as root and as SlurmUser; a container engine does not let it make namespaces
setpriv --reuid=nobody --regid=nogroup --clear-groups \
    env SLURM_JWT=daemon SLURMRESTD_SECURITY=disable_unshare_sysv,disable_unshare_files \
    slurmrestd -a rest_auth/jwt -s openapi/slurmctld 0.0.0.0:6820 &
wait -n
