"""Containers of a real apptainer under a real Slurm: the GPUs that Slurm gives, and the processes of a real MPI."""

import re

import pytest

from cluster.polling import eventually
from cluster.systems import debian, images, install
from tests.e2e.pools.cases import pod, sh
from tests.e2e.pools.groups import delete, start

pytestmark = pytest.mark.real

POOL = "apptainer-site"
SEEN = 'echo "sees <$CUDA_VISIBLE_DEVICES>"; sleep 300'
EVERYTHING = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2,3"}]
"""The output of a pod that requests more than it gets."""


def seen(world, one):
    """Return the devices that the container of a running pod sees, from its environment."""
    found = eventually(lambda: re.search(r"^sees <(.*)>$", world.logs(one, check=False), re.MULTILINE), "its line")
    return found[1]


def given(world, one):
    """Return the node of a pod's job, and the indices of its GPUs."""
    job = world.taken(one).partition("/")[2]
    text = world.cluster.site_slurm(POOL, "scontrol", "show", "job", "--details", job)
    found = re.search(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(?:gpu:\d+\(IDX:([\d,-]+)\))?", text)
    numbers = []
    for part in (found[2] or "").split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1) if first else []
    return found[1], numbers


def test_a_container_sees_the_gpus_that_slurm_gave_its_job_and_no_other(pools_world):
    world = pools_world
    limits = [{"resources": {"limits": {"nvidia.com/gpu": count}}} for count in ("1", "1", "2")]
    pods = [world.create_pod(pod(sh(SEEN, env=EVERYTHING, **more)), POOL) for more in [*limits, {}]]
    for one in pods:
        world.running(one, 60)
    *with_gpus, without = pods
    given_to = [given(world, one) for one in with_gpus]
    assert [seen(world, one) for one in with_gpus] == [",".join(map(str, numbers)) for _, numbers in given_to]
    assert sorted((node, number) for node, numbers in given_to for number in numbers) == [
        (node, number) for node in ("node-0", "node-1") for number in (0, 1)
    ]
    assert given(world, without)[1] == [] and seen(world, without) == ""
    for one in pods:
        world.delete(one, 1)
    world.clear()


RANKS = 3
MANY = 2**20
"""Bytes of one message: more than an MPI library copies without asking the other process."""
MPI = f"""
import ctypes
mpi = ctypes.CDLL("libmpich.so.12")
# handles of MPICH's ABI (mpi.h)
WORLD, BYTE, INT, SUM, NO_STATUS = 0x44000000, 0x4C00010D, 0x4C000405, 0x58000003, ctypes.c_void_p(1)
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
one = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, INT, SUM, WORLD)
mine, other = ctypes.create_string_buffer(bytes([65 + rank.value]) * {MANY}), ctypes.create_string_buffer({MANY})
after, before = (rank.value + 1) % size.value, (rank.value - 1) % size.value
mpi.MPI_Sendrecv(mine, {MANY}, BYTE, after, 0, other, {MANY}, BYTE, before, 0, WORLD, NO_STATUS)
mpi.MPI_Barrier(WORLD)
heard = {{other.raw[0], other.raw[{MANY} - 1]}}
version, length = ctypes.create_string_buffer(8192), ctypes.c_int()
mpi.MPI_Get_library_version(version, ctypes.byref(length))
print(version.value.decode().splitlines()[0])
print(f"rank {{rank.value}} of {{size.value}}: sum {{total.value}}, from before {{bytes(heard).decode()}}", flush=True)
mpi.MPI_Finalize()
"""
"""A Python program, so that nothing has to be compiled; the library is MPICH."""


@pytest.fixture
def for_mpi(pools_world):
    """The site, with MPICH on its nodes, and with the settings that MPI needs."""
    install.ensure(added=("mpich", "python3"))
    world = pools_world
    world.cluster.stop_submitter(POOL)
    world.cluster.start_submitter(POOL, {"limits": {"allow_user_flags": True, "allow_runtime_options": True}})
    world.ready(POOL)
    yield world
    world.cluster.stop_submitter(POOL)
    world.cluster.start_submitter(POOL)
    world.ready(POOL)


# MPI and Python are the node's, as with Apptainer's "bind model"
BINDS = " ".join(f"--bind {each}:{each}:ro" for each in ("/usr", "/lib", "/lib64"))
BY_MPI = {
    "command": ["/usr/bin/python3", "-c", MPI],
    # the interfaces of other tests come and go
    "env": [{"name": "UCX_NET_DEVICES", "value": "lo"}],
}
NOT_LOCAL = {"name": "MPIR_CVAR_NOLOCAL", "value": "1"}
"""Pods of one machine have no memory in common, which this MPICH expects."""
IMAGE = "with-mpich"
PYTHON = "/usr/bin/python3.13"
IN_IMAGE = (
    PYTHON,
    "/usr/lib/python3.13",
    *(f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("libffi.so.8", "libmpich.so.12")),
)
"""Of a Debian that is older than that of the site's nodes, with an older MPICH."""


def said(rank):
    """Return the line of a process."""
    total = RANKS * (RANKS + 1) // 2
    return f"rank {rank} of {RANKS}: sum {total}, from before {chr(65 + (rank - 1) % RANKS)}"


def version_in_world(world, name, annotations, container):
    """Run a group whose processes must be one world; return the version of their MPI library."""

    def run():
        pods = start(world, name, POOL, "", {"bridge.vk.io/mpi": "pmi2", **annotations}, container)
        if all(world.ended(one)["status"].get("reason") != "NotPossibleAtSite" for one in pods):
            return pods
        delete(world, name)
        world.clear()
        return None

    pods = eventually(run, "the hub knows the site's new configuration")
    lines = [world.logs(one).splitlines()[-2:] for one in pods]
    assert [line[1:] for line in lines] == [[said(rank)] for rank in range(RANKS)]
    (version,) = {line[0] for line in lines}
    delete(world, name)
    world.clear()
    return version


def test_the_members_of_a_group_are_one_world(for_mpi):
    """Each pod has one process, which Slurm's srun has started; Slurm introduces them to each other.

    MPI is the site's, bound into an image without one, and then that of an image, which the site does not have.
    """
    install.ensure(added=("libmpich", "python3.13"))
    site = for_mpi.cluster.sites[POOL]
    images.add_programs(site.images, IMAGE, debian.added_root("libmpich"), *IN_IMAGE)
    of_site = version_in_world(for_mpi, "bound", {"slurm-job.vk.io/singularity-mounts": BINDS}, BY_MPI)
    own = {"image": IMAGE, "command": [PYTHON, "-c", MPI], "env": [*BY_MPI["env"], NOT_LOCAL]}
    of_image = version_in_world(for_mpi, "own", {}, own)
    assert of_site.startswith("MPICH Version:") and of_image.startswith("MPICH Version:")
    assert of_site != of_image


def test_the_processes_that_mpiexec_starts_are_one_world(for_mpi):
    world = for_mpi
    annotations = {
        "slurm-job.vk.io/flags": f"--ntasks={RANKS}",
        "slurm-job.vk.io/mpi-flags": "true",
        "slurm-job.vk.io/singularity-mounts": BINDS,
    }
    container = {"name": "main", "image": "busybox", **BY_MPI}

    def run():
        one = world.create_pod(pod(container), POOL, annotations=annotations)
        return one if world.ended(one)["status"].get("reason") != "NotPossibleAtSite" else None

    one = eventually(run, "the hub knows the site's new configuration")
    lines = [line for line in world.logs(one).splitlines() if line.startswith("rank ")]
    assert sorted(lines) == [said(rank) for rank in range(RANKS)], world.logs(one)
    assert world.get(one)["status"]["phase"] == "Succeeded"
    world.clear()
