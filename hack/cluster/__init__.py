"""Real clusters on one machine, without containers: kube-apiserver, kwok for kubelets, Slurm, podbridge.

>>> with Cluster(Path("/tmp/here"), slurm="26.05", nodes=4) as cluster:
...     cluster.kubectl("get", "nodes")
...     cluster.run_slurm("sinfo")
"""

from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.options import Options
from cluster.systems.slurm import Size

__all__ = ["Cluster", "ClusterError", "Options", "Size"]
