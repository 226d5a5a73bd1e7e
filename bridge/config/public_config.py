"""The part of the hub's configuration that each user of the cluster may read, in a ConfigMap. Pure.

The chart writes it (``templates/public-config.yaml``) to the namespace kube-public: each cluster has it, and only
administrators write there. So nobody else can make a user's command send a token of Slurm to another URL.
"""

from __future__ import annotations

import yaml

from bridge.config.documents import yaml_document
from bridge.config.hub import Config, parse
from bridge.errors import ConfigError

NAMESPACE = "kube-public"
KEY = "config.yaml"
"""The key in the ConfigMap's data."""
KEYS = (
    "installation",
    "schedulerName",
    "slurmRestApi",
    "slurmApiVersion",
    "partition",
    "partitions",
    "managedNamespaces",
    "managedNamespaceSelector",
    "placeholder",
    "exclusive",
    "gres",
    "deviceClasses",
    "defaults",
    "mcsLabel",
    "busyNodeTimeout",
    "maxGracePeriod",
    "leaderElection",
)
"""What the chart writes: no file names, no addresses but that of slurmrestd, no policies of namespaces."""


def name(installation: str) -> str:
    """Return the name of the ConfigMap."""
    return f"{installation}-public"


def read(text: str, source: str) -> Config:
    """Return the configuration. Keys of a later version are ignored. Raises :class:`ConfigError`."""
    keys = yaml_document(text, source)
    if not isinstance(keys, dict):
        raise ConfigError(f"{source}: must be a mapping of keys, not {type(keys).__name__}")
    return parse(yaml.safe_dump({key: keys[key] for key in KEYS if key in keys}), source, whole=False)
