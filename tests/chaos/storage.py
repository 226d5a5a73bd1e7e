"""Claims of pods, local volumes, and a provisioner that works when a test calls it."""

from cluster.polling import eventually
from cluster.world import NAMESPACE

CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SELECTED = "volume.kubernetes.io/selected-node"
NODES = 4


def claim(name, storage_class):
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**asked, "storageClassName": storage_class}}


def volume(name, node, storage_class, ref=None):
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": storage_class}
    spec |= {"local": {"path": "/mnt"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    return {"metadata": {"name": name}, "spec": spec | ({"claimRef": ref} if ref else {})}


class Storage:
    """A pod's claim for a local volume, one of which is on each node, and its claim for a provisioner."""

    def __init__(self, world):
        self._world = world

    def prepare(self, name):
        """Create classes, local volumes and both claims for a pod; return the volumes of its spec.

        The claims are ``local-<name>`` and ``made-<name>``, the local volumes ``local-<name>-<number of the node>``.
        """
        mounts = []
        for kind, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", "example.com/test")):
            own = f"{kind}-{name}"
            body = {"metadata": {"name": own}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
            self._world.api("POST", CLASSES, body)
            self._world.api("POST", CLAIMS, claim(own, own))
            mounts.append({"name": kind, "persistentVolumeClaim": {"claimName": own}})
        for number in range(NODES):
            self._world.api("POST", VOLUMES, volume(f"local-{name}-{number}", f"node-{number}", f"local-{name}"))
        return mounts

    def provision(self):
        """Create the volumes of claims for which podbridge has selected a node."""
        for found in self._world.api("GET", CLAIMS)["items"]:
            metadata, spec = found["metadata"], found["spec"]
            node = (metadata.get("annotations") or {}).get(SELECTED)
            if node and found["status"]["phase"] == "Pending":
                ref = {key: metadata[key] for key in ("namespace", "name", "uid")}
                made = volume(f"for-{metadata['name']}", node, spec["storageClassName"], ref)
                self._world.api.request("POST", VOLUMES, made)

    def check(self, name, node):
        """Assert that both claims of a pod are bound to volumes of its node."""
        local, made = (self._world.api("GET", f"{CLAIMS}/{kind}-{name}") for kind in ("local", "made"))
        assert local["spec"]["volumeName"] == f"local-{name}-{node[-1]}"
        assert made["spec"]["volumeName"] == f"for-made-{name}"
        assert made["metadata"]["annotations"][SELECTED] == node

    def remove(self, name):
        """Delete the claims, volumes and classes of a pod; a claim disappears after its pod."""
        for kind in ("local", "made"):
            for path in (CLAIMS, CLASSES):
                self._world.api.request("DELETE", f"{path}/{kind}-{name}")
        for volume_name in (*(f"local-{name}-{number}" for number in range(NODES)), f"for-made-{name}"):
            self._world.api.request("DELETE", f"{VOLUMES}/{volume_name}")

    def check_removed(self):
        """Wait until no claim and no volume is left."""
        eventually(lambda: not self._world.api("GET", CLAIMS)["items"], "no claims of volumes")
        eventually(lambda: not self._world.api("GET", VOLUMES)["items"], "no volumes")
