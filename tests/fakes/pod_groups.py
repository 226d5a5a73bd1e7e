"""The resource of scheduler-plugins' PodGroups, for clusters on which the controller of the project does not run."""

from __future__ import annotations

from typing import Any

API_VERSION = "scheduling.x-k8s.io/v1alpha1"
LABEL = "scheduling.x-k8s.io/pod-group"
"""Label of the members of a PodGroup: its name."""
NAME = "podgroups.scheduling.x-k8s.io"
_SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
DEFINITION: dict[str, Any] = {
    "metadata": {"name": NAME, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups"},
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}],
    },
}
"""The CustomResourceDefinition, without the rules of the project's own one."""
