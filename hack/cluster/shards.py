"""Shards of one Slurm: installations of podbridge, each with a partition and a namespace of its own.

The first shard is the installation ``podbridge`` with the namespace ``slurm-bridge``, the second is ``podbridge-2``
with ``slurm-bridge-2``. The partition ``shard-N`` has a part of the nodes.
"""

from __future__ import annotations

from typing import Any

from cluster.systems.slurm import node_names

MOST = 4


def numbered(name: str, number: int) -> str:
    """Return the name of a thing of the shard ``number``, which counts from 1."""
    return name if number == 1 else f"{name}-{number}"


def partitions(count: int, nodes: int) -> list[str]:
    """Return the lines of slurm.conf for ``count`` shards, empty for one."""
    if count == 1:
        return []
    parts = [node_names(nodes)[number::count] for number in range(count)]
    return [
        f"PartitionName=shard-{number} Nodes={','.join(part)} MaxTime=INFINITE State=UP"
        for number, part in enumerate(parts, 1)
    ]


def settings(number: int) -> dict[str, Any]:
    """Return the configuration of a shard; it is merged into the common one."""
    partition = f"shard-{number}"
    return {
        "installation": numbered("podbridge", number),
        "schedulerName": numbered("slurm-bridge-scheduler", number),
        "managedNamespaces": [numbered("slurm-bridge", number)],
        "partition": partition,
        "partitions": [partition],
    }
