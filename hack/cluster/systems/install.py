"""Installation of the real systems: what is built from Go modules here, the others in :mod:`cluster.systems.debian`.

Everything is in the cache folder. It is built in a temporary folder and renamed when complete, under a lock:
concurrent runs wait for each other, and an interrupted run starts again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError
from cluster.steps import locked, run_long, say
from cluster.systems import debian, gang_manifests, gangs, kuberay, kueue_manifests, metrics_server, trainer

KUBERNETES = places.KUBERNETES[places.DEFAULT_KUBERNETES]
"""The version that ``hack/tools/go.mod`` pins, stamped into the binaries."""
TOOLS = places.CHECKOUT / "hack" / "tools"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
"""The programs of the control plane, and the Go packages that they are built from."""
KUBELET = {"kubelet": "k8s.io/kubernetes/cmd/kubelet"}
"""The same for a real node (see :mod:`cluster.systems.realnode`)."""
DRA_DRIVER = {"dra-driver": "k8s.io/kubernetes/test/e2e/dra/test-driver"}
"""The same for devices of a real node: the DRA driver with which Kubernetes tests its kubelet."""
SCHEDULER = {"kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler"}
"""The same for pods that podbridge does not schedule (see :mod:`cluster.systems.kueue`)."""


@dataclass(frozen=True)
class GoModule:
    """A Go module of ``hack/tools`` besides the first one, and the programs that are built from it."""

    name: str
    """Name of the stamp of its versions, and of its folder."""
    subject: str
    minutes: float
    """How long the build takes on 2 cores."""
    packages: Mapping[str, str]
    flags: str = ""
    after: Callable[[Path], None] | None = None
    """What else is taken from the module, after each build."""
    of: str = ""
    """Name of its folder, if that is the folder of another one."""

    @property
    def folder(self) -> Path:
        """Folder of its go.mod."""
        return TOOLS / (self.of or self.name)


def gang_manifests_folder() -> Path:
    """Return the folder of the gang controllers' manifests in the cache."""
    return places.cache() / "gangs"


def trainer_manifests_folder() -> Path:
    """Return the folder of Kubeflow Trainer's manifests in the cache."""
    return places.cache() / "trainer"


def kuberay_manifests_folder() -> Path:
    """Return the folder of KubeRay's manifests in the cache."""
    return places.cache() / "kuberay"


def kueue_manifests_folder(version: str) -> Path:
    """Return the folder of the manifests of a version of Kueue in the cache."""
    return places.cache() / _kueue_name(version)


def _kueue_name(version: str) -> str:
    """Return the name of a version of Kueue: of its program, its Go module and its manifests."""
    return "kueue" if version == places.DEFAULT_KUEUE else f"kueue-{version}"


INTERLINK = GoModule(
    "interlink",
    "interLink's API server and virtual kubelet",
    2,
    {
        "interlink-api": "github.com/interlink-hq/interlink/cmd/interlink",
        "interlink-virtual-kubelet": "github.com/interlink-hq/interlink/cmd/virtual-kubelet",
    },
)
"""interLink's own programs (see :mod:`cluster.systems.interlink`)."""
GANGS = GoModule(
    "gangs",
    "the controllers of JobSet, LeaderWorkerSet and scheduler-plugins",
    2,
    {
        gangs.JOBSET: "sigs.k8s.io/jobset",
        gangs.LWS: "sigs.k8s.io/lws/cmd",
        gangs.PODGROUPS: "sigs.k8s.io/scheduler-plugins/cmd/controller",
    },
    after=lambda tools: gang_manifests.take(tools, gang_manifests_folder()),
)
"""The controllers of groups of pods (see :mod:`cluster.systems.gangs`)."""
TRAINER = GoModule(
    "trainer",
    "the controller of Kubeflow Trainer",
    1,
    {trainer.TRAINER: "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"},
    after=lambda tools: trainer.take(tools, trainer_manifests_folder()),
)
"""Kubeflow Trainer (see :mod:`cluster.systems.trainer`)."""
KUBERAY = GoModule(
    "kuberay",
    "the operator of KubeRay",
    2,
    {kuberay.OPERATOR: kuberay.MODULE},
    after=lambda tools: kuberay.take(tools, kuberay_manifests_folder()),
)
"""KubeRay (see :mod:`cluster.systems.kuberay`). It takes half a minute after Kueue, which has the same libraries."""
METRICS_SERVER = GoModule(
    "metrics-server",
    "metrics-server",
    4,
    {"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
    after=metrics_server.take,
)
"""metrics-server (see :mod:`cluster.systems.metrics_server`)."""
JAEGER = GoModule("jaeger", "Jaeger", 3, {"jaeger": "github.com/jaegertracing/jaeger/cmd/jaeger"})
"""A collector of traces (see :mod:`cluster.systems.jaeger`)."""
ACTIONLINT = GoModule("actionlint", "actionlint", 0.5, {"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"})
"""The linter of ``.github/workflows``."""
OAUTH2_PROXY = GoModule("oauth2-proxy", "OAuth2-proxy", 1, {"oauth2-proxy": "github.com/oauth2-proxy/oauth2-proxy/v7"})
"""The proxy in front of the interLink plugin (see :mod:`cluster.systems.helm_images`)."""

KUBE_SCORE = GoModule("kube-score", "kube-score", 0.5, {"kube-score": "github.com/zegl/kube-score/cmd/kube-score"})
"""A critic of Kubernetes objects, for those that the chart renders."""


ORACLE = GoModule(
    "oracle", "Kubernetes' readers of quantities and of CEL", 1, {"oracle": "podbridge/hack/tools/oracle"}
)
"""What Kubernetes' own code makes of a text (see :mod:`cluster.systems.oracle`)."""


def kueue_module(version: str = places.DEFAULT_KUEUE) -> GoModule:
    """Return a version of Kueue (see :mod:`cluster.systems.kueue`)."""
    name = _kueue_name(version)
    return GoModule(
        name,
        f"Kueue's controller {places.KUEUE[version]}",
        5,
        {name: "sigs.k8s.io/kueue/cmd/kueue"},
        after=lambda tools: kueue_manifests.take(tools, kueue_manifests_folder(version)),
    )


def kueue_binary(version: str) -> Path:
    """Return the path of the controller of a version of Kueue."""
    return binaries(kueue_module(version).packages)[_kueue_name(version)]


HELM_VERSION = "v3.22.0"
"""The version that ``hack/tools/helm/go.mod`` pins."""
_HELM = "helm.sh/helm/v3"
_KUBERNETES_OF_HELM = {
    f"{package}.k8sVersion{part}": number
    for package in ("pkg/chartutil", "pkg/lint/rules")
    for part, number in zip(("Major", "Minor"), KUBERNETES[1:].split(".")[:2], strict=True)
}
HELM = GoModule(
    "helm",
    "Helm",
    1.5,
    {"helm": f"{_HELM}/cmd/helm"},
    # without the version of Kubernetes, `helm template` renders for 1.20
    " ".join(
        f"-X {_HELM}/{key}={value}"
        for key, value in ({"internal/version.version": HELM_VERSION} | _KUBERNETES_OF_HELM).items()
    ),
)
"""Helm, which renders and installs the chart helm/podbridge."""


def _version_flags(version: str) -> str:
    """Return the linker flags that stamp a version, without which Kubernetes' programs report v0.0.0."""
    major, minor = version[1:].split(".")[:2]
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamped.items())


KIND = GoModule(
    "kind",
    "kind, kubeadm, kube-proxy and CoreDNS",
    8,
    {
        "kind": "sigs.k8s.io/kind",
        "kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
        "coredns": "github.com/coredns/coredns",
    },
    _version_flags(KUBERNETES),
)
"""kind, and what its nodes need besides the control plane (see :mod:`cluster.systems.kind`)."""
KUBE_PROXY = GoModule(
    "kube-proxy", "kube-proxy", 2, {"kube-proxy": KIND.packages["kube-proxy"]}, KIND.flags, of=KIND.name
)
"""kube-proxy alone, of the same module."""


def _control_plane_module(version: str) -> GoModule:
    # clients differ by their age too: the newest version has its own one
    more = ("kubectl",) if version == max(places.KUBERNETES) else ()
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", *more)
    return GoModule(
        f"kubernetes-{version}",
        f"{', '.join(programs)} of Kubernetes {version}",
        6,
        {f"{name}-{version}": (PACKAGES | SCHEDULER)[name] for name in programs},
        _version_flags(places.KUBERNETES[version]),
    )


CONTROL_PLANES = {
    version: _control_plane_module(version) for version in places.KUBERNETES if version != places.DEFAULT_KUBERNETES
}
"""Version of Kubernetes -> the module of its control plane; etcd, kwok and mostly kubectl are the same for all."""


def control_plane(kubernetes: str) -> dict[str, Path]:
    """Return the path of each program of the control plane of a version of Kubernetes."""
    module = CONTROL_PLANES.get(kubernetes)
    others = binaries(module.packages) if module else {}
    return binaries(PACKAGES | SCHEDULER) | {name.removesuffix(f"-{kubernetes}"): path for name, path in others.items()}


def ensure(
    slurm: Iterable[str] = (),
    kube: bool = False,
    added: Iterable[str] = (),
    machine: Iterable[str] = (),
    accounting: Iterable[str] = (),
    real_node: bool = False,
    dra: bool = False,
    scheduler: bool = False,
    modules: Iterable[GoModule] = (),
) -> None:
    """Install everything that a cluster needs; print the steps that take long.

    ``slurm`` and ``accounting`` are versions of Slurm, ``added`` and ``machine`` names of the tables in
    :mod:`cluster.systems.debian`. ``real_node`` adds the kubelet and its container runtime, ``dra`` a driver of
    devices for it, ``scheduler`` kube-scheduler. The programs of ``modules`` are built while Debian's packages are
    downloaded.
    """
    with locked(), ThreadPoolExecutor(1) as background:
        if kube:
            chosen = ((KUBELET, real_node), (DRA_DRIVER, dra), (SCHEDULER, scheduler))
            _ensure_binaries([*PACKAGES, *(name for names, wanted in chosen if wanted for name in names)])
        building = [background.submit(_ensure_module, module) for module in modules]
        for version in slurm:
            debian.ensure_slurm(version)
        for version in accounting:
            debian.ensure_accounting(version)
        for name in added:
            debian.ensure_added(name)
        if machine := tuple(machine):
            debian.ensure_machine(*machine)
        if real_node:
            debian.ensure_containerd()
        for module_built in building:
            module_built.result()


# --- programs written in Go -------------------------------------------------------------------------------------------
def binaries(names: Iterable[str] = PACKAGES) -> dict[str, Path]:
    """Return the path of each program: in ``$KUBEBUILDER_ASSETS``, else in the cache."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    result = {name: places.cache() / "bin" / name for name in names}
    if given:
        result |= {name: Path(given) / name for name in result if (Path(given) / name).exists()}
    return result


def _ensure_binaries(names: Sequence[str]) -> None:
    folder = places.cache() / "bin"
    stamp, pinned = folder / ".pinned", _pinned(TOOLS)
    missing = _missing(names, stamp, pinned)
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_fresh(stamp, pinned):
        for name in PACKAGES | KUBELET | DRA_DRIVER | SCHEDULER:  # also those that this cluster does not need
            (folder / name).unlink(missing_ok=True)
    missing = [name for name in missing if not _from_envtest(name, folder)]
    if missing:
        _build_kubernetes(missing, folder)
    stamp.write_text(pinned + "\n")


def _ensure_module(module: GoModule) -> None:
    folder = places.cache() / "bin"
    stamp, pinned = folder / f".pinned-{module.name}", _pinned(module.folder)
    missing = _missing(module.packages, stamp, pinned)
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    about = f"building {module.subject} from source. About {module.minutes:g} minutes on 2 cores, once."
    packages = {name: module.packages[name] for name in missing}
    _build(f"{module.name} build", about, module.folder, packages, folder, module.flags)
    if module.after:
        module.after(module.folder)
    stamp.write_text(pinned + "\n")


def _pinned(module: Path) -> str:
    """Return a digest of the versions of a Go module, and of its own source if it has any."""
    files = [module / "go.mod", module / "go.sum", *sorted(module.glob("*.go"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _missing(names: Iterable[str], stamp: Path, pinned: str) -> list[str]:
    """Return the programs of the cache that do not exist, or were built from other versions."""
    fresh = _is_fresh(stamp, pinned)
    paths = binaries(names)
    return [name for name, path in paths.items() if path.parent == stamp.parent and not (fresh and path.exists())]


def _is_fresh(stamp: Path, pinned: str) -> bool:
    return stamp.exists() and stamp.read_text().strip() == pinned


def _from_envtest(name: str, folder: Path) -> bool:
    """Link the programs that ``setup-envtest`` downloads, if it is installed and can download them."""
    if name not in ("etcd", "kube-apiserver", "kubectl"):
        return False
    found = _envtest_folder()
    if found is None or not (found / name).exists():
        return False
    link = folder / f".{name}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(found / name)
    link.replace(folder / name)
    return True


@functools.cache
def _envtest_folder() -> Path | None:
    tool = shutil.which("setup-envtest")
    if tool is None:
        return None
    version = ".".join(KUBERNETES[1:].split(".")[:2])
    try:
        done = subprocess.run([tool, "use", version, "-p", "path"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    say(f"kube-apiserver and etcd come from setup-envtest: {done.stdout.strip()}")
    return Path(done.stdout.strip())


def _build_kubernetes(names: Sequence[str], folder: Path) -> None:
    about = (
        f"building {', '.join(names)} of Kubernetes {KUBERNETES} from source: there is no container engine and no "
        "release archive to take them from. About 8 minutes for all on 2 cores and 8 GB of Go caches, once."
    )
    packages = PACKAGES | KUBELET | DRA_DRIVER | SCHEDULER
    _build("go build", about, TOOLS, {name: packages[name] for name in names}, folder, _version_flags(KUBERNETES))


def _build(what: str, about: str, module: Path, packages: Mapping[str, str], folder: Path, flags: str = "") -> None:
    """Build programs (name -> package) with the Go tool chain from the versions pinned in ``module``."""
    if shutil.which("go") is None:
        raise ClusterError(f"{', '.join(packages)} must be built, and there is no Go tool chain on this machine")
    say(about)
    aside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    command = ["go", "install", "-v", f"-ldflags=-s -w {flags}".rstrip(), *packages.values()]
    run_long(what, command, "packages compiled", cwd=module, env={"CGO_ENABLED": "0", "GOBIN": str(aside)})
    for name, package in packages.items():
        (aside / _program(package)).replace(folder / name)
    shutil.rmtree(aside)


def _program(package: str) -> str:
    """Return the name that Go gives to a program: the last element of its package that is no version."""
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))
