"""Debian packages: Slurm in each version, HTCondor, container runtimes, daemons for tests.

Packages of this machine's suite are installed by apt. The others go into root folders of newer suites in the cache,
made by debootstrap; packages are added to a root folder when a cluster needs them.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError
from cluster.steps import locked, run_long, say

SLURM_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmrestd", "slurm-wlm-jwt-plugin", "munge")
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server-core")
"""Without the rest of mariadb-server: 8 MB to fetch, not 23."""
ADDED = {
    "apptainer": ("sid", "apptainer", "usr/bin/apptainer"),
    "htcondor": ("trixie", "htcondor", "usr/sbin/condor_master"),
}
"""Additions to a root folder: name -> suite, package, and a file of the package."""
BESIDE_APPTAINER = {
    "bindfs": (ADDED["apptainer"][0], "bindfs", "usr/bin/bindfs"),
    "squashfuse": (ADDED["apptainer"][0], "squashfuse", "usr/bin/squashfuse_ll"),
    "mpich": (ADDED["apptainer"][0], "mpich", "usr/bin/mpiexec.mpich"),
    "python3": (ADDED["apptainer"][0], "python3", "usr/bin/python3"),
}
"""The same, for tests alone: file systems that containers mount, an MPI and a language to call it from."""
BROWSER = {
    "chromium": ("trixie", "chromium-driver", "usr/bin/chromedriver"),
    "fonts": ("trixie", "fonts-dejavu-core", "usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
}
"""The same, for tests of the web page."""
PYTHONS = {"3.13": ("trixie", "python3.13", "usr/bin/python3.13"), "3.14": ("sid", "python3.14", "usr/bin/python3.14")}
"""Versions of Python for the unit tests: suite, package, and a file of the package."""
MPICH = {"libmpich": ("trixie", "libmpich12", "usr/lib/x86_64-linux-gnu/libmpich.so.12")}
"""The same, for an image with an MPI of another version than its site has."""
OPENMPI = {"openmpi": ("trixie", "libopenmpi40", "usr/lib/x86_64-linux-gnu/libmpi.so.40")}
"""The same, for tests of PMIx, which this Slurm has as a plugin."""
_ALL = (
    ADDED
    | MPICH
    | OPENMPI
    | BESIDE_APPTAINER
    | BROWSER
    | {f"python{version}": found for version, found in PYTHONS.items()}
)
MACHINE = {
    "shellcheck": "shellcheck",
    "busybox": "busybox-static",
    "nginx": "nginx-light",
    "redis-server": "redis-server",
    "podman": "podman",
    "crun": "crun",
    "newuidmap": "uidmap",
    "ch-run": "charliecloud-runtime",
    "bindfs": "bindfs",
    "fusermount3": "fuse3",
    "curl": "curl",
    "qemu-aarch64-static": "qemu-user-static",
    "skopeo": "skopeo",
    "ip": "iproute2",
    "nft": "nftables",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
"""Programs of this machine that tests and sites use -> their packages."""


CONTAINERD = ("sid", "containerd")
"""Suite and package of containerd: Debian 12 has 1.6, which a kubelet of today does not support."""


def slurm_root(version: str) -> Path:
    """Return the root folder of a Slurm: ``/`` if the machine has this version or apt can install it."""
    if version not in places.SUITES:
        raise ClusterError(f"no Slurm {version}; there are {', '.join(places.SUITES)}")
    if _slurm_version(Path("/")).startswith(version) or _codename() == places.SUITES[version]:
        return Path("/")
    return _root(places.SUITES[version])


def added_root(name: str) -> Path:
    """Return the root folder that has one of :data:`ADDED` or of the others."""
    return _root(_ALL[name][0])


def has(root: Path, name: str) -> bool:
    """Return whether a root folder has one of :data:`ADDED`, :data:`BESIDE_APPTAINER` or :data:`BROWSER`."""
    return (root / _ALL[name][2]).exists()


def ensure_slurm(version: str) -> None:
    """Install a Slurm of this version if it is missing."""
    root = slurm_root(version)
    if root == Path("/"):
        if not _slurm_version(root).startswith(version):
            say(f"installing Slurm {version} by apt (some 15 s, once)")
            _apt(*SLURM_PACKAGES)
            _slurm_version.cache_clear()
    elif not root.exists():
        _debootstrap(places.SUITES[version], root, f"Slurm {version}")
    if not _slurm_version(root).startswith(version):
        raise ClusterError(f"{root} holds {_slurm_version(root) or 'no Slurm'}, not {version}")
    if root != Path("/"):
        _finish(root)


def ensure_accounting(version: str) -> None:
    """Install slurmdbd and its database beside the installed Slurm of this version."""
    root = slurm_root(version)
    if not (root / "usr/sbin/slurmdbd").exists() or not (root / "usr/sbin/mariadbd").exists():
        say(f"adding slurmdbd and MariaDB to Slurm {version} (some 5 s, once)")
        _apt(*ACCOUNTING_PACKAGES, root=root)


def ensure_added(name: str) -> None:
    """Install one of :data:`ADDED`, :data:`BESIDE_APPTAINER` or :data:`BROWSER` in its root folder."""
    suite, package, _ = _ALL[name]
    root = _root(suite)
    if not root.exists():
        _debootstrap(suite, root, "Slurm")
    _finish(root)
    if not has(root, name):
        say(f"adding {package} to the root folder of Debian {suite} (some 15 s, once)")
        _apt(package, root=root)


def python_launcher(version: str) -> Path:
    """Return a program that runs a Python of a root folder on this machine, outside of the root folder.

    The suite's dynamic linker loads the suite's libraries; programs that Python starts are those of this machine. The
    program lies beside the interpreter, where Python finds its standard library.
    """
    suite, _, file = PYTHONS[version]
    root = _root(suite)
    (linker,) = (root / "lib64").glob("ld-linux-*.so.*")
    libraries = root / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
    launcher = root / "usr" / "bin" / f"podbridge-python{version}"
    launcher.write_text(f'#!/bin/sh\nexec {linker} --argv0 "$0" --library-path {libraries} {root / file} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def ensure_machine(*names: str) -> None:
    """Install these programs of :data:`MACHINE` on this machine (all of them if none is named)."""
    missing = [MACHINE[name] for name in names or MACHINE if shutil.which(name) is None]
    if missing:
        _apt(*missing)


def containerd_folder() -> Path:
    """Return the folder of containerd, its shim and ctr. They run outside of the root folder of their suite."""
    return places.cache() / "containerd" / "usr" / "bin"


def ensure_containerd() -> None:
    """Install containerd, and runc and the CNI plugins of this machine."""
    ensure_machine("busybox", "runc", "/usr/lib/cni/ptp")
    if containerd_folder().exists():
        return
    suite, package = CONTAINERD
    root = _root(suite)
    if not root.exists():
        _debootstrap(suite, root, "Slurm")
    say(f"fetching {package} of Debian {suite} (some 40 MB, once)")
    aside = containerd_folder().parents[1].with_suffix(".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    fetched = root / "tmp" / "containerd"
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir()
    check = "Acquire::Check-Valid-Until=false"
    script = f"cd /tmp/containerd && apt-get -o {check} update && apt-get download {package}"
    run_long(f"apt-get download {package}", ["chroot", str(root), "sh", "-ec", script], "lines")
    _unpack(fetched, aside)
    shutil.rmtree(fetched)
    aside.rename(containerd_folder().parents[1])


def unpacked(package: str) -> Path:
    """Return the folder of a package's programs that :func:`ensure_unpacked` unpacks."""
    return places.cache() / package / "usr" / "bin"


def ensure_unpacked(package: str) -> None:
    """Unpack a package of this machine's suite in the cache: once installed, it would start a service."""
    target = unpacked(package).parents[1]
    with locked():
        if target.exists():
            return
        say(f"fetching {package} of Debian (some 20 MB, once)")
        aside = target.with_suffix(".tmp")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        run_long("apt-get update", ["apt-get", "-o", "DPkg::Lock::Timeout=300", "update"], "lines")
        run_long(f"apt-get download {package}", ["apt-get", "download", package], "lines", cwd=aside)
        _unpack(aside, aside)
        aside.rename(target)


def netavark_folder() -> Path:
    """Return the folder of podman's network programs netavark and aardvark-dns."""
    return places.cache() / "netavark" / "usr" / "lib" / "podman"


def ensure_netavark() -> None:
    """Fetch netavark and aardvark-dns; once installed, podman would use them for its other containers too."""
    target = netavark_folder().parents[2]
    if target.exists():
        return
    aside = target.with_suffix(".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    run_long("apt-get download netavark", ["apt-get", "download", "netavark", "aardvark-dns"], "lines", cwd=aside)
    _unpack(aside, aside)
    aside.rename(target)


def _unpack(fetched: Path, target: Path) -> None:
    """Unpack the packages of a folder, and delete them."""
    for file in fetched.glob("*.deb"):
        run_long(f"dpkg -x {file.name}", ["dpkg", "-x", str(file), str(target)], "lines")
        file.unlink()


def _root(suite: str) -> Path:
    return places.cache() / "roots" / suite


def _finish(root: Path) -> None:
    hosts = root / "etc" / "hosts"
    if not hosts.exists():
        # without one, every twentieth REST call waits 5 s for a DNS answer about this machine's name
        hosts.write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")


def ensure_debootstrap() -> None:
    """Install debootstrap on this machine."""
    if shutil.which("debootstrap") is None:
        _apt("debootstrap")


def _debootstrap(suite: str, root: Path, what: str) -> None:
    ensure_debootstrap()
    say(f"fetching {what} into a root folder of Debian {suite} (some 300 MB, about a minute, once)")
    aside = root.with_name(f"{root.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    include = ",".join(SLURM_PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={include}", suite, str(aside)]
    run_long(f"debootstrap {suite}", command, "steps")
    aside.rename(root)


@functools.cache
def _slurm_version(root: Path) -> str:
    """Return the version of the Slurm in a root folder, such as ``26.05.5``; empty if there is none."""
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


def _apt(*packages: str, root: Path = Path("/")) -> None:
    """Install packages on this machine or in a root folder; their daemons are not started."""
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    before = ["-o", "DPkg::Lock::Timeout=300"]
    enter: list[str] = []
    if root != Path("/"):
        enter = ["chroot", str(root)]
        # as debootstrap: the index of a mirror that is no longer updated expires
        before += ["-o", "Acquire::Check-Valid-Until=false"]
        policy = root / "usr" / "sbin" / "policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    run_long("apt-get update", [*enter, "apt-get", *before, "update"], "lines", env=env)
    command = [*enter, "apt-get", *before, "install", "-y", "--no-install-recommends", *packages]
    run_long(f"apt-get install {' '.join(packages)}", command, "lines", env=env)
