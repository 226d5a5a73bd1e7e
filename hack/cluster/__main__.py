"""``python -m cluster up|down|install``, for the scripts in ``hack/``."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from cluster import orphans, places, pools, shards
from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.options import FILE as RECORD
from cluster.steps import say
from cluster.systems import debian, helm, image, install, kueue, prometheus, realnode


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        options.act(options)
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


def up(options: argparse.Namespace) -> None:
    """Start a cluster, unless it runs already, and podbridge on it."""
    begun = time.monotonic()
    cluster = _chosen(options)
    before = cluster.running
    if not before:
        say(f"starting Slurm {cluster.options.slurm} and Kubernetes, {cluster.options.nodes} nodes")
    cluster.start()
    if options.podbridge and cluster.options.helm:
        try:
            ready = helm.up(cluster)
        except BaseException:
            cluster.stop()
            raise
        print(f"helm install to ready: {ready:.1f} s")
    elif options.podbridge and cluster.pid("podbridge") is None:
        before = False
        try:
            cluster.start_podbridge()
            cluster.start_shards()
            cluster.start_submitters()
            pools.wait_nodes(cluster.api, cluster.sites)
        except BaseException:
            cluster.stop()
            raise
    how = "runs already" if before else f"up in {time.monotonic() - begun:.1f} s"
    print(f"{how}: Slurm {cluster.options.slurm}, {cluster.options.nodes} nodes, in {cluster.state}")
    if cluster.options.real_node:
        print(f"  node-0 is real (kubelet and containerd, {realnode.size().cpus} CPUs); image: busybox:1")
    if cluster.options.helm:
        print(f"  podbridge runs in pods: helm -n {helm.NAMESPACE} status {helm.RELEASE}")
    if (count := cluster.options.schedulers) > 1:
        last = shards.numbered("slurm-bridge", count)
        print(f"  {count} shards: namespaces slurm-bridge to {last}, partitions shard-1 to shard-{count}")
    if cluster.options.kueue:
        print(f"  LocalQueue {kueue.QUEUE} in namespace slurm-bridge; kube-scheduler binds to {kueue.LOCAL_NODE}")
    for site in cluster.sites.values():
        print(f"  {site.describe()}")
    print(f"  source {shlex.quote(str(cluster.state / 'env'))}")


def down(options: argparse.Namespace) -> None:
    """Stop a cluster, or all that tests have kept or that were left behind by a killed run."""
    kept = places.kept_state()
    states = [record.parent for record in sorted(kept.glob(f"*/{RECORD}"))] if options.tests else [options.state]
    for folder in orphans.stop() if options.tests else []:
        print(f"stopped and removed {folder}, which a killed run left behind")
    if not states:
        print(f"nothing to stop in {kept}")
    for state in states:
        try:
            cluster = Cluster.load(state)
        except ClusterError:
            print(f"nothing to stop in {state}")
            continue
        cluster.stop()
        print(f"stopped; logs are in {cluster.state / 'logs'}")


def get_all(options: argparse.Namespace) -> None:
    """Download and build what the clusters of a run need; of Kubernetes, the chosen versions alone."""
    accounting = [version for version in options.slurm if version == "24.11"]
    wanted = {*options.kubernetes, places.kubernetes()}
    install.ensure(
        options.slurm,
        kube=True,
        added=[*debian.ADDED, *debian.BROWSER],
        machine=debian.MACHINE,
        accounting=accounting,
        real_node=True,
        dra=True,
        scheduler=True,
        modules=[
            install.INTERLINK,
            install.GANGS,
            install.TRAINER,
            install.KUBERAY,
            install.kueue_module(places.kueue()),
            *(module for version, module in install.CONTROL_PLANES.items() if version in wanted),
            install.HELM,
        ],
    )
    prometheus.ensure()
    image.build()  # the first build takes longer than a test may


def _chosen(options: argparse.Namespace) -> Cluster:
    """Return the cluster of the options; options that are not set are those of the cluster that runs there."""
    keys = (
        "slurm",
        "nodes",
        "real_node",
        "dra",
        "helm",
        "audit",
        "kubernetes",
        "gangs",
        "kuberay",
        "kueue",
        "pools",
        "site_slurm",
        "nats_servers",
        "schedulers",
    )
    named = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    if named.get("helm") or named.get("dra"):
        named["real_node"] = True
    if named.get("pools") == []:
        named["pools"] = list(pools.DEFAULT_SITES)
    try:
        there = Cluster.load(options.state)
    except ClusterError:
        return Cluster(options.state, **named)
    if not any(there.pid(name) for name in there.daemons):
        return Cluster(options.state, **named)
    for key, value in named.items():
        if getattr(there.options, key) != value:
            raise ClusterError(
                f"a cluster with {key} {getattr(there.options, key)} runs in {options.state}: down first"
            )
    return there


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    versions = list(places.SUITES)
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument(
        "--state", type=Path, default=places.default_state(), metavar="DIR", help="folder of the cluster (%(default)s)"
    )
    start = commands.add_parser("up", parents=[state], help="start a cluster; does nothing where it runs")
    start.add_argument("--slurm", choices=versions, help=f"Slurm's version ({places.DEFAULT_SLURM})")
    start.add_argument("--nodes", type=_count, metavar="N", help="number of nodes (4)")
    start.add_argument(
        "--kubernetes", choices=list(places.KUBERNETES), help=f"version of the control plane ({places.kubernetes()})"
    )
    start.add_argument(
        "--gangs",
        action="store_true",
        default=None,
        help="run the controllers of JobSet, LeaderWorkerSet and scheduler-plugins' PodGroup",
    )
    start.add_argument(
        "--kuberay", action="store_true", default=None, help="run the operator of KubeRay; with --gangs only"
    )
    start.add_argument(
        "--kueue",
        action="store_true",
        default=None,
        help="run Kueue, with a queue for Slurm's nodes, and kube-scheduler, with a node of its own",
    )
    start.add_argument(
        "--real-node",
        action="store_true",
        default=None,
        help="make node-0 real: a kubelet and containerd of this machine, of its size",
    )
    start.add_argument(
        "--dra",
        action="store_true",
        default=None,
        help="give the real node GPUs, in Slurm and by a DRA driver that its kubelet calls",
    )
    start.add_argument(
        "--helm",
        action="store_true",
        default=None,
        help="build the image and install the chart, so that podbridge runs in pods of the real node",
    )
    start.add_argument("--audit", action="store_true", default=None, help="keep an audit log of the API server")
    start.add_argument(
        "--pools",
        nargs="*",
        choices=pools.SITES,
        metavar="SITE",
        help=f"add a nats-server and sites: {', '.join(pools.SITES)} (with no name: {', '.join(pools.DEFAULT_SITES)})",
    )
    start.add_argument("--site-slurm", choices=versions, help="version of Slurm at slurm-site (24.11)")
    start.add_argument(
        "--nats-servers", type=int, choices=(1, 3), help="servers of the pools' NATS: one, or a cluster of three (1)"
    )
    start.add_argument(
        "--schedulers", type=int, metavar="N", help="installations of podbridge, each with a part of the nodes (1)"
    )
    start.add_argument("--no-podbridge", dest="podbridge", action="store_false", help="leave podbridge out")
    start.set_defaults(act=up)
    stop = commands.add_parser("down", parents=[state], help="stop a cluster, jobs' processes included")
    text = "stop the clusters of tests instead: those of ./hack/test.sh --keep, and those of killed runs"
    stop.add_argument("--tests", action="store_true", help=text)
    stop.set_defaults(act=down)
    fetch = commands.add_parser("install", help="fetch and build what clusters need, and start none")
    fetch.add_argument("--slurm", nargs="+", choices=versions, default=versions, help="versions of Slurm (all)")
    fetch.add_argument(
        "--kubernetes",
        nargs="+",
        choices=list(places.KUBERNETES),
        default=(),
        help=f"versions of Kubernetes beside {places.kubernetes()}",
    )
    fetch.set_defaults(act=get_all)
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 5000:
        raise argparse.ArgumentTypeError("must be a number from 1 to 5000")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
