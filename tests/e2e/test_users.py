"""Pods as users of Slurm, by namespace and by group of the author, with the associations of a real slurmdbd.

What a user may not do with ``sbatch``, a pod in this user's name may not do either, and the pod says why.
"""

import json

import pytest

from cluster import Cluster
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.systems.slurm import ACCOUNTING
from cluster.world import JOB_PREFIX, World

pytestmark = pytest.mark.real

LAB = "lab"
POLICIES = [
    {
        "namespaces": [LAB],
        "groups": ["physicists"],
        "default": {"userId": "bob", "groupId": "20002", "account": "physics", "wckey": "particles"},
    },
    {
        "namespaces": [LAB],
        "default": {"userId": "alice", "groupId": "20001", "wckey": "lab"},
        "allowed": {"account": ["*"], "qos": ["*"], "partition": ["main", "for-bob"], "wckey": ["particles"]},
    },
]
CONF = [
    ACCOUNTING,
    "AccountingStorageEnforce=associations,limits,qos,wckeys",
    "AccountingStoreFlags=job_comment",
    "TrackWCKey=yes",
    "PartitionName=for-bob Nodes=node-[0-1] State=UP AllowGroups=bob",
]


@pytest.fixture(scope="module")
def lab(state_folder):
    """Slurm with accounting: alice is of account chemistry, bob of physics. SlurmUser has no association."""
    settings = {"slurm": {"pollIdle": 0.5}, "managedNamespaces": [LAB], "namespacePolicies": POLICIES}
    with Cluster(state_folder / "users", slurm="24.11", nodes=2, slurm_conf=CONF, podbridge=settings) as cluster:
        for words in ("qos high", "account chemistry", "account physics"):
            cluster.run_slurm("sacctmgr", "-i", "add", *words.split())
        for user, account, wckey in (("alice", "chemistry", "lab"), ("bob", "physics", "particles")):
            cluster.run_slurm("sacctmgr", "-i", "add", "user", user, f"account={account}", f"wckey={wckey}")
        cluster.add_namespace(LAB)
        cluster.start_podbridge()
        yield World(cluster)


def create(world, **annotations):
    return world.create(namespace=LAB, job={key.replace("_", "-"): value for key, value in annotations.items()})


def as_alice(world, *options):
    """Run sbatch as alice."""
    user = ("setpriv", "--reuid=20001", "--regid=20001", "--clear-groups")
    return world.slurm(*user, "sbatch", "--chdir=/", "--output=/dev/null", "--mem=1", *options, "--wrap=true")


def test_pods_are_jobs_of_the_users_of_their_namespace_and_sacct_names_the_pods(lab):
    world = lab
    of_namespace = create(world)
    kubectl = world.cluster.kubectl
    kubectl("create", "clusterrolebinding", "physicists", "--clusterrole=admin", "--group=physicists")
    carol = ("--as=carol", "--as-group=physicists", "--as-group=system:authenticated")
    manifest = {"apiVersion": "v1", "kind": "Pod", **world.manifest("of-a-group")}
    of_group = json.loads(kubectl("create", "-n", LAB, "-o", "json", "-f", "-", *carol, input=json.dumps(manifest)))
    rows = {}
    for pod, user, account, wckey in (
        (of_namespace, "alice(20001)", "chemistry", "lab"),
        (of_group, "bob(20002)", "physics", "particles"),
    ):
        job = world.labelled(world.running(pod))
        found = world.job(job)
        assert (found["UserId"], found["GroupId"]) == (user, user)
        assert (found["Account"], found["WCKey"]) == (account, wckey)
        rows[job] = f"{job}|{user.split('(')[0]}|{account}|{wckey}|{LAB}/{pod['metadata']['name']}|1"
        world.delete(pod, grace=1)
    for pod in (of_namespace, of_group):
        world.gone(pod)

    def billed():
        jobs = ",".join(map(str, rows))
        text = world.slurm("sacct", "-anXP", "-j", jobs, "-o", "jobid,user,account,wckey,comment,alloccpus,end")
        return [line.rpartition("|")[0] for line in text.splitlines() if "Unknown" not in line]

    eventually(lambda: set(billed()) == set(rows.values()), "sacct names namespace and pod of both jobs", 20)


def test_what_slurm_refuses_to_a_user_it_refuses_to_the_users_pod(lab):
    """The policy allows all of these values: Slurm refuses them, and the pod has Slurm's words."""
    world = lab
    assert "Submitted" in as_alice(world)
    told = {
        "account": create(world, account="physics"),
        "qos": create(world, qos="high"),
        "wckey": create(world, wckey="particles"),
    }
    elsewhere = create(world, partition="for-bob")

    def message(pod, reason):
        found = world.condition(pod, "PodScheduled")
        return found.get("reason") == reason and found["message"].lower()

    for what, pod in told.items():
        text = eventually(lambda pod=pod: message(pod, "SlurmRefused"), f"Slurm's refusal of the {what}", 20)
        assert what in text
        value = pod["metadata"]["annotations"][JOB_PREFIX + what]
        with pytest.raises(ClusterError, match=what):
            as_alice(world, f"--{what}={value}")
    # Slurm keeps such a job, also one of sbatch, unless EnforcePartLimits is set
    eventually(lambda: "accountnotallowed" in (message(elsewhere, "SlurmPending") or ""), "Slurm's reason", 20)
    for pod in (*told.values(), elsewhere):
        world.delete(pod)


def test_a_limit_of_a_qos_is_named(lab):
    world = lab
    for words in ("add qos single", "modify qos single set grpjobs=1", "modify user alice set qos+=single"):
        world.cluster.run_slurm("sacctmgr", "-i", *words.split())
    first = world.running(create(world, qos="single"))
    second = create(world, qos="single")

    def told():
        return "QOSGrpJobsLimit" in world.condition(second, "PodScheduled").get("message", "")

    eventually(told, "Slurm's reason", 20)
    report = world.explained("pod", second["metadata"]["name"], LAB)
    assert "QOSGrpJobsLimit" in report["summary"]
    assert report["next"].startswith("a limit of the account or the QOS is reached: sacctmgr show assoc,qos")
    for pod in (first, second):
        world.delete(pod, grace=1)
        world.gone(pod)
