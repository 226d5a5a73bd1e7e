"""kind on podman, without a registry: a node image of Debian's packages and of programs that are built from source.

podman has the storage of the images that ``hack/image.sh`` builds, so no container or image of a user is touched. A
node needs the privileges of root. Of kind's base image, its Go module has the files.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError
from cluster.processes import run
from cluster.steps import locked, run_long, say
from cluster.systems import containerd, debian, image, images, install

FILES = places.CHECKOUT / "hack" / "kind"
NETWORK = "localhost/podbridge-kind-network:1"
"""The image of ``routes.sh`` and of kube-proxy."""
_NODE = "localhost/podbridge-kind-node"
_BUILDER = "podbridge-kind-builder"
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_REGISTRY = "registry.k8s.io"
_PROGRAMS = (*install.PACKAGES, *install.KUBELET, *install.SCHEDULER, *install.KIND.packages)
_IMPORT = """
containerd >/dev/null 2>&1 & until ctr version >/dev/null 2>&1; do sleep 0.2; done
for archive in /archives/*; do ctr --namespace k8s.io images import --no-unpack "$archive"; done
ctr --namespace k8s.io images tag {network} {proxy}
kill $!; wait; rm -rf /run/containerd
"""


@contextmanager
def engine(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which ``kind`` uses podman in the storage of the cache; remove all clusters at the end.

    ``folder`` holds podman's settings and the kubeconfig.
    """
    folder.mkdir(parents=True)
    programs = folder / "bin"
    programs.mkdir()
    for name in ("kind", "kubectl"):
        (programs / name).symlink_to(_program(name))
    (programs / "helm").symlink_to(install.binaries(install.HELM.packages)["helm"])
    settings = folder / "containers.conf"
    settings.write_text(_settings())
    words = image.podman("--runtime=/usr/sbin/runc")
    wrapper = programs / "podman"
    wrapper.write_text(f'#!/bin/sh\nCONTAINERS_CONF={settings} exec /usr/bin/{" ".join(words)} "$@"\n')
    docker = programs / "docker"  # the script prefers a docker whose daemon answers
    docker.write_text("#!/bin/sh\nexit 1\n")
    for script in (wrapper, docker):
        script.chmod(0o755)
    Path("/lib/modules").mkdir(exist_ok=True)  # nodes mount it
    variables = {
        **os.environ,
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "KUBECONFIG": str(folder / "kubeconfig"),
        "KIND_EXPERIMENTAL_PROVIDER": "podman",
    }
    with locked("kind"):  # the clusters of another process must not be removed
        try:
            yield variables
        finally:
            subprocess.run([str(programs / "kind"), "delete", "clusters", "--all"], env=variables, check=False)
            subprocess.run([str(wrapper), "network", "rm", "--force", "kind"], env=variables, check=False)


def node_image() -> str:
    """Return the name of the node image; build it unless the storage has it (about 3 minutes, and 10 for programs)."""
    install.ensure(kube=True, real_node=True, scheduler=True, modules=(install.KIND, install.HELM))
    with locked("image"):
        with locked():
            debian.ensure_machine("podman")
            debian.ensure_netavark()
        image.ensure_base()
        name = f"{_NODE}:{_digest()}"
        if subprocess.run(image.podman("image", "exists", name), check=False).returncode:
            say(f"building the node image of kind, {name} (about 3 minutes, once)")
            _build(name)
    return name


def _build(name: str) -> None:
    context = places.cache() / "kind.tmp"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(_base_files(), context / "base")
    _write_context(context)
    for target in ("network", "node"):
        tag = NETWORK if target == "network" else f"{name}-programs"
        words = image.podman("build", "--isolation=chroot", "--network=host", f"--build-arg=BASE={image.BASE}")
        words += [f"--target={target}", f"--tag={tag}", f"--file={FILES / 'Dockerfile'}", str(context)]
        run_long(f"podman build {target}", words, "lines")
    archives = context / "images"
    run(image.podman("save", "--quiet", "--format=docker-archive", f"--output={archives / 'network.tar'}", NETWORK))
    run(image.podman("rm", "--force", "--ignore", _BUILDER))
    volume = f"--volume={archives}:/archives:ro"
    create = ["run", "--detach", "--privileged", "--network=none", f"--name={_BUILDER}", volume, "--entrypoint=sleep"]
    limits = [f"--ulimit={limit}" for limit in _limits()]
    run(image.podman("--runtime=/usr/sbin/runc", *create, *limits, f"{name}-programs", "infinity"))
    proxy = f"{_REGISTRY}/kube-proxy:{install.KUBERNETES}"
    script = _IMPORT.format(network=NETWORK, proxy=proxy)
    run_long("import of images", image.podman("exec", _BUILDER, "sh", "-ec", script), "lines")
    change = '--change=ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]'
    run_long("podman commit", image.podman("commit", "--quiet", "--pause=false", change, _BUILDER, name), "lines")
    run(image.podman("rm", "--force", "--time=0", _BUILDER))
    listed = run(image.podman("images", "--format={{.Repository}}:{{.Tag}}")).split()
    old = [other for other in listed if other.startswith(f"{_NODE}:") and other != name]
    run(image.podman("rmi", *old))
    shutil.rmtree(context)


def _write_context(context: Path) -> None:
    """Write the files of the Dockerfile's ``COPY`` instructions, and the archive of the control plane's images."""
    programs = context / "node" / "usr" / "local" / "bin"
    shared = context / "network" / "usr" / "local"
    archives = context / "images"
    for folder in (programs, shared / "bin", shared / "share", archives, context / "node" / "kind" / "bin"):
        folder.mkdir(parents=True)
    for name in ("kubeadm", "kubectl", "kubelet"):
        shutil.copy(_program(name), programs / name)
    for path in debian.containerd_folder().iterdir():
        shutil.copy(path, programs / path.name)
    kind = context / "node" / "kind"
    (kind / "version").write_text(install.KUBERNETES)
    (kind / "manifests").mkdir()
    shutil.copy(FILES / "network.yaml", kind / "manifests" / "default-cni.yaml")
    shutil.copy(FILES / "keep-settings.sh", kind / "bin")
    options = "--runtime-cgroups=/system.slice/containerd.service --fail-cgroupv1=false"
    (context / "node" / "etc" / "default").mkdir(parents=True)
    (context / "node" / "etc" / "default" / "kubelet").write_text(f"KUBELET_EXTRA_ARGS={options}\n")
    for name in ("kube-proxy", "kubectl"):
        shutil.copy(_program(name), shared / "bin" / name)
    shutil.copy(FILES / "routes.sh", shared / "bin")
    shutil.copy(FILES / "network.json", shared / "share")
    base = context / "base"
    for folder in (shared / "bin", base / "kind" / "bin", base / "usr" / "local" / "bin"):
        for program in folder.iterdir():
            program.chmod(0o755)
    _write_images(archives)


def _write_images(folder: Path) -> None:
    """Write an archive of busybox and of the images that kubeadm expects; all have one layer with all programs."""
    listed = run([str(_program("kubeadm")), "config", "images", "list", "--kubernetes-version", install.KUBERNETES])
    tags = {line.rsplit("/", 1)[1].partition(":")[0]: line for line in listed.split()}
    made = folder.parent / "control-plane"
    images.write_busybox(made)
    root = made / images.NAMES[0]
    for name in (*_CONTROL_PLANE, "etcd", "coredns"):
        shutil.copy(_program(name), root / "bin" / name)
    (root / "coredns").symlink_to("bin/coredns")
    entries = {name: images.Entry((tags[name],)) for name in (*_CONTROL_PLANE, "etcd")}
    entries["coredns"] = images.Entry((tags["coredns"],), entrypoint=["/bin/coredns"])
    pauses = {tags["pause"], f"{_REGISTRY}/pause:3.10"}  # that of kubeadm, and that of the base image's containerd
    entries["busybox"] = images.Entry(containerd.TAGS, command=["sh"])
    entries["pause"] = images.Entry(sorted(pauses), command=["sleep", "2147483647"])
    archive = made / "control-plane.tar"
    images.write_archive(root, archive, entries)
    archive.rename(folder / archive.name)


def _base_files() -> Path:
    """Return the folder of kind's Go module with the files of its base image."""
    words = ["go", "-C", str(install.KIND.folder), "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind"]
    folder = Path(run(words).strip()) / "images" / "base" / "files"
    if not folder.is_dir():
        raise ClusterError(f"kind's Go module has no folder {folder}")
    return folder


def _program(name: str) -> Path:
    return install.binaries(_PROGRAMS)[name]


def _digest() -> str:
    """Return a digest of what the node image is made of."""
    total = hashlib.sha256()
    modules = [folder / "go.mod" for folder in (install.TOOLS, install.KIND.folder)]
    for path in [*sorted(FILES.iterdir()), *modules, Path(__file__)]:
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _limits() -> list[str]:
    """Return limits that podman may set without CAP_SYS_RESOURCE; its defaults may be above those of the machine."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    found = {"nofile": files, "nproc": processes // 4}
    return [f"{name}={limit}:{limit}" for name, limit in found.items() if limit > 0]


def _settings() -> str:
    limits = ", ".join(f'"{limit}"' for limit in _limits())
    return (
        f"[containers]\ndefault_ulimits = [{limits}]\n"
        '[network]\nnetwork_backend = "netavark"\n'  # with names of containers in DNS, which CNI's default lacks
        f'[engine]\nhelper_binaries_dir = ["{debian.netavark_folder()}", "/usr/lib/podman", "/usr/libexec/podman"]\n'
    )
