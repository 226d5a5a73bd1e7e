"""Getting the real systems, once: the control plane's binaries and Slurm in each version.

All of it is kept in the cache folder, made aside and renamed when complete, under a lock: runs side by side wait for
each other, and one that was interrupted begins again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError

KUBERNETES = "v1.36.3"
"""The version that ``hack/tools/go.mod`` pins, stamped into the binaries."""
TOOLS = places.CHECKOUT / "hack" / "tools"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
"""The programs of the control plane, and the Go packages they are built from."""
SLURM_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmrestd", "slurm-wlm-jwt-plugin", "munge")


def ensure(slurm: str | None, kube: bool) -> None:
    """Make sure that all a cluster needs is there; says what it does when that takes long."""
    with _locked():
        if kube:
            _ensure_binaries()
        if slurm:
            _ensure_slurm(slurm)


# --- control plane ----------------------------------------------------------------------------------------------------
def binaries() -> dict[str, Path]:
    """Where each program of the control plane lies: in ``$KUBEBUILDER_ASSETS``, else in the cache."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    result = {name: places.cache() / "bin" / name for name in PACKAGES}
    if given:
        result |= {name: Path(given) / name for name in PACKAGES if (Path(given) / name).exists()}
    return result


def _ensure_binaries() -> None:
    folder = places.cache() / "bin"
    stamp = folder / ".pinned"
    pinned = hashlib.sha256((TOOLS / "go.mod").read_bytes() + (TOOLS / "go.sum").read_bytes()).hexdigest()
    fresh = stamp.exists() and stamp.read_text().strip() == pinned
    missing = [name for name, path in binaries().items() if path.parent == folder and not (fresh and path.exists())]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in missing if not _from_envtest(name, folder)]
    if missing:
        _build(missing, folder)
    stamp.write_text(pinned + "\n")


def _from_envtest(name: str, folder: Path) -> bool:
    """Link what ``setup-envtest`` can download, if it is on this machine and can."""
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


def _build(names: Sequence[str], folder: Path) -> None:
    """Build programs with the Go tool chain from the modules pinned in ``hack/tools``."""
    if shutil.which("go") is None:
        raise ClusterError(f"{', '.join(names)} must be built, and there is no Go tool chain on this machine")
    say(
        f"building {', '.join(names)} of Kubernetes {KUBERNETES} from source: there is no container engine and no "
        "release archive to take them from. About 6 minutes on 2 cores and 8 GB of Go caches, once."
    )
    major, minor = KUBERNETES[1:].split(".")[:2]
    stamped = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamped.items())
    aside = folder.with_name("bin.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    packages = [PACKAGES[name] for name in names]
    command = ["go", "install", "-v", f"-ldflags=-s -w {flags}", *packages]
    _run_long("go build", command, "packages compiled", cwd=TOOLS, env={"CGO_ENABLED": "0", "GOBIN": str(aside)})
    for name in names:  # etcd's main package is called server
        (aside / ("server" if name == "etcd" else name)).replace(folder / name)
    shutil.rmtree(aside)


# --- Slurm ------------------------------------------------------------------------------------------------------------
def slurm_root(version: str) -> Path:
    """Root folder of a Slurm: ``/`` if the machine's own has this version or can get it by apt."""
    if version not in places.SUITES:
        raise ClusterError(f"no Slurm {version}; there are {', '.join(places.SUITES)}")
    if _slurm_version(Path("/")).startswith(version) or _codename() == places.SUITES[version]:
        return Path("/")
    return places.cache() / "roots" / places.SUITES[version]


def _ensure_slurm(version: str) -> None:
    root = slurm_root(version)
    if root == Path("/"):
        if not _slurm_version(root).startswith(version):
            say(f"installing Slurm {version} by apt (some 15 s, once)")
            _apt(*SLURM_PACKAGES)
            _slurm_version.cache_clear()
    elif not root.exists():
        if shutil.which("debootstrap") is None:
            _apt("debootstrap")
        _debootstrap(places.SUITES[version], root, version)
    if not _slurm_version(root).startswith(version):
        raise ClusterError(f"{root} holds {_slurm_version(root) or 'no Slurm'}, not {version}")
    hosts = root / "etc" / "hosts"
    if root != Path("/") and not hosts.exists():
        # without one, every twentieth REST call waits 5 s for an answer about this machine's own name
        hosts.write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")


def _debootstrap(suite: str, root: Path, version: str) -> None:
    say(f"fetching Slurm {version} into a root folder of Debian {suite} (some 300 MB, about a minute, once)")
    aside = root.with_name(f"{root.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    include = ",".join(SLURM_PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={include}", suite, str(aside)]
    _run_long(f"debootstrap {suite}", command, "steps")
    aside.rename(root)


@functools.cache
def _slurm_version(root: Path) -> str:
    """Version of the Slurm in a root folder, such as ``26.05.5``; empty if there is none."""
    program = ["slurmctld", "-V"] if root == Path("/") else ["chroot", str(root), "/usr/sbin/slurmctld", "-V"]
    try:
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()[-1]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


@functools.cache
def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")


def _apt(*packages: str) -> None:
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    _run_long("apt-get update", ["apt-get", *wait, "update"], "lines", env=env)
    command = ["apt-get", *wait, "install", "-y", "--no-install-recommends", *packages]
    _run_long(f"apt-get install {' '.join(packages)}", command, "lines", env=env)


# --- both -------------------------------------------------------------------------------------------------------------
def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    places.cache().mkdir(parents=True, exist_ok=True)
    with (places.cache() / ".install.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run that installs into the same cache")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_long(
    what: str, command: Sequence[str], unit: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a command that takes long; counts its lines of output aloud, and shows the last ones if it fails."""
    log = places.cache() / "log" / f"{what.split()[0]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = spoken = time.monotonic()
    lines = []
    with subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None  # noqa: S101
        for line in child.stdout:
            lines.append(line)
            if time.monotonic() - spoken > 10:
                spoken = time.monotonic()
                say(f"  {what}: {len(lines)} {unit}, {spoken - begun:.0f} s")
    log.write_text("".join(lines))
    if child.returncode:
        raise ClusterError(f"{what} failed with {child.returncode} (all of it: {log}):\n{''.join(lines[-15:])}")
    say(f"  {what}: done in {time.monotonic() - begun:.0f} s")
