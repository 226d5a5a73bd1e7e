"""The sites of a cluster: real batch systems, each with a user of its own, and nothing left of any of them."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import Cluster, places
from cluster.polling import eventually
from cluster.pools import SITES
from cluster.processes import inside, of_user
from tests.contract.hack.mounts import mounts

pytestmark = pytest.mark.real
SLURMS = ("slurm-site", "apptainer-site")
CONDOR_JOB = """\
executable = /bin/sh
transfer_executable = false
should_transfer_files = NO
arguments = "{home}/job.sh"
output = {home}/out
log = {home}/log
queue
"""


@pytest.fixture(scope="module")
def all_sites(state_folder):
    """Every site that there is, and no Kubernetes."""
    with Cluster(state_folder / "sites", slurm=None, kube=False, pools=list(SITES)) as cluster:
        yield cluster


def write(site, name, text):
    """Write a file into the home of the site's user; gives its path as the site sees it."""
    site.run("sh", "-c", 'cat > ~/"$1"', "sh", name, input=text)
    return f"/srv/home/{name}"


def submit(site, script):
    """Give a script to the batch system as the site's user."""
    file = write(site, "job.sh", f"#!/bin/sh\n{script}\n")
    if site.batch == "slurm":
        return site.run("sbatch", "--output=/srv/home/out", file)
    if site.batch == "htcondor":
        return site.run("condor_submit", "-terse", write(site, "job.sub", CONDOR_JOB.format(home="/srv/home")))
    return site.run("sh", "-c", "setsid sh ~/job.sh > ~/out 2>&1 < /dev/null &")


def output(site):
    with contextlib.suppress(FileNotFoundError):
        return (site.folder / "home" / "out").read_text()
    return ""


@pytest.mark.parametrize("name", SITES)
def test_jobs_run_as_the_sites_user_and_see_its_folder_where_the_submitter_does(all_sites, name):
    site = all_sites.sites[name]
    submit(site, "id -u; id -un; wc -c < /srv/home/seed; echo over")
    uid, user, letters, _ = eventually(lambda: (text := output(site)).endswith("over\n") and text.split(), timeout=90)
    assert (int(uid), user) == (site.uid, "podbridge-site")
    assert int(letters) == all_sites.nats.seed(name).stat().st_size > 0


def test_a_sites_user_reads_neither_other_sites_nor_the_hubs_credentials(all_sites):
    site = all_sites.sites["local-site"]
    for file in (all_sites.nats.seed("hub"), all_sites.sites["slurm-site"].folder / "home" / "seed"):
        assert "ermission denied" in site.run("cat", str(file), check=False)


@pytest.mark.parametrize("name", SITES)
def test_the_python_packages_and_the_checkout_are_all_that_a_submitter_finds_of_root(all_sites, name):
    site = all_sites.sites[name]
    command = site.submitter({})
    run = command[: command.index("-c")]  # the interpreter, as the submitter is started
    done = subprocess.run([*run, "-c", "import bridge.config.hub, pydantic"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cache = places.cache()
    if any(not folder.stat().st_mode & 0o001 for folder in cache.parents):
        seen = set(site.run("ls", "-A", str(cache)).split())
        assert seen <= {Path(sys.prefix).name, "roots"}


def test_sites_say_what_runs_containers_there(all_sites):
    said = {name: site.describe() for name, site in all_sites.sites.items()}
    assert said["slurm-site"] == "slurm-site: Slurm 24.11, 2 nodes, containers by none"
    assert said["apptainer-site"] == "apptainer-site: Slurm 26.05, 2 nodes, containers by apptainer"
    assert said["condor-site"] == "condor-site: HTCondor, 2 machines, containers by none"


@pytest.mark.parametrize("version", ["26.05", "22.05"])
def test_nothing_is_left_of_a_site_its_jobs_and_their_containers(state_folder, version):
    state = state_folder / f"left site {version}"
    mounted = mounts()
    with Cluster(state, slurm=None, kube=False, pools=["slurm-site", "local-site"], site_slurm=version) as cluster:
        users = [site.uid for site in cluster.sites.values()]
        for site in cluster.sites.values():
            inner = "setsid sleep 4711"
            if site.runtime == "apptainer":
                inner = f"apptainer exec --containall --no-home /srv/images/busybox {inner}"
            submit(site, f"{inner} & wait")
        for uid in users:
            eventually(lambda uid=uid: any("4711" in arguments(pid) for pid in of_user(uid)), timeout=90)
        assert mounts() == mounted
        folders = [site.folder for site in cluster.sites.values()]
    assert [of_user(uid) for uid in users] == [[], []]
    assert [inside(folder, "/srv") for folder in folders] == [[], []]
    assert mounts() == mounted


def arguments(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
