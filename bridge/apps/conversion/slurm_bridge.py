"""From the values of slurm-bridge's chart, or its ``config.yaml``, to values of the chart ``helm/podbridge``. Pure.

Source: ``helm/slurm-bridge/values.yaml`` of SlinkyProject/slurm-bridge, versions 1.0 to 1.3. Each value gets its place
in podbridge's chart, or a note. Where podbridge has no default, the result has that of slurm-bridge's chart, so that
pods get the same partition and the same MCS label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from bridge.apps.conversion.values_reader import Converted, Kind, Note, Object, ValuesReader, mapping_of, put
from bridge.config import hub as configuration

SECTIONS = ("sharedConfig", "schedulerConfig", "scheduler", "admission", "controllers")
COMPONENTS = ("scheduler", "admission", "controllers")
_CONFIG: dict[str, tuple[str, Kind]] = {
    "sharedConfig.slurmRestApi": ("config.slurmRestApi", "text"),
    "schedulerConfig.schedulerName": ("config.schedulerName", "text"),
    "schedulerConfig.mcsLabel": ("config.mcsLabel", "text"),
    "schedulerConfig.partition": ("config.partition", "text"),
    "admission.managedNamespaces": ("config.managedNamespaces", "list"),
    "admission.managedNamespaceSelector": ("config.managedNamespaceSelector", "mapping"),
    "sharedConfig.slurmJwtSecret.name": ("slurm.jwt.existingSecret", "text"),
    "sharedConfig.slurmJwtSecret.key": ("slurm.jwt.key", "text"),
    "admission.enabled": ("admission.enabled", "yes or no"),
    "admission.certManager.enabled": ("admission.certManager.enabled", "yes or no"),
    "admission.certManager.duration": ("admission.certManager.duration", "text"),
    "admission.certManager.renewBefore": ("admission.certManager.renewBefore", "text"),
    "admission.tls.existingSecret": ("admission.tls.existingSecret", "text"),
}
_COMPONENT: dict[str, tuple[str, Kind]] = {
    "replicas": ("replicas", "count"),
    "replicaCount": ("replicas", "count"),
    "imagePullPolicy": ("imagePullPolicy", "text"),
    "image.pullPolicy": ("imagePullPolicy", "text"),
    "priorityClassName": ("priorityClassName", "text"),
    "resources": ("resources", "mapping"),
    "nodeSelector": ("nodeSelector", "mapping"),
    "affinity": ("affinity", "mapping"),
    "tolerations": ("tolerations", "list"),
    "pdb.enabled": ("pdb.enabled", "yes or no"),
    "pdb.minAvailable": ("pdb.minAvailable", "amount"),
    "pdb.maxUnavailable": ("pdb.maxUnavailable", "amount"),
}
_FILE = {
    "slurmRestApi": "sharedConfig",
    "schedulerName": "schedulerConfig",
    "mcsLabel": "schedulerConfig",
    "partition": "schedulerConfig",
    "managedNamespaces": "admission",
    "managedNamespaceSelector": "admission",
}
"""The keys of slurm-bridge's ``config.yaml``, and the section of its chart for each."""
_DEFAULTS = {"config.mcsLabel": "kubernetes", "config.partition": "slurm-bridge"}
"""Defaults of slurm-bridge's chart where podbridge has none."""
_WHY = {
    "nameOverride": "podbridge's objects are named after its release",
    "fullnameOverride": "podbridge's objects are named after its release",
    "namespaceOverride": "podbridge's objects are in the namespace of its release; use helm --namespace",
    "image": "an image of slurm-bridge; set image.registry and image.repository for podbridge",
    "leaderElect": "podbridge elects a leader by default: config.leaderElection.leaderElect",
    "featureGates": "podbridge's scheduler is not a kube-scheduler",
    "podWorkers": "config.workers is the number of workers of a component, by default 8",
    "deviceProfiles": "config.deviceClasses names the gres of each device class",
    "clientQPS": "a FlowSchema of API Priority and Fairness limits podbridge's requests",
    "clientBurst": "a FlowSchema of API Priority and Fairness limits podbridge's requests",
    "caBundle": "podbridge reads ca.crt of admission.tls.existingSecret",
}
_MODES = ("partition", "account", "qos", "licenses", "reservation", "wckey")
_OPEN_POLICY = {
    "namespaces": ["*"],
    "mayNameScheduler": True,
    "allowed": {name: ["*"] for name in _MODES},
    "max": {"maxNodes": 1_000_000, "exclusive": True},
}


def convert(text: str, source: str, *, allow_all: bool = False, exclusive: bool = False) -> Converted:
    """Convert the text of a ``values.yaml`` or a ``config.yaml`` of slurm-bridge; ``source`` names it in errors.

    ``allow_all`` adds a policy that lets the pods of every namespace use every partition, account, QOS, license,
    reservation and WCKey, and name the scheduler; ``exclusive`` gives pods whole nodes by default. slurm-bridge does
    both. Raises :class:`ConfigError` if a value has the wrong type, or podbridge refuses it.
    """
    data = mapping_of(text, source)
    is_file = not data.keys().isdisjoint(_FILE) and data.keys().isdisjoint(SECTIONS)
    if is_file:
        data = _sections_of(data)
    _name_and_key(data)
    reader = ValuesReader(data, source)
    reader.sections(*SECTIONS)
    values: Object = {}
    notes: list[Note] = []
    for path, (target, kind) in _CONFIG.items():
        value = reader.take(path, kind)
        if value not in (None, {}):
            put(values, target, value)
    for component in COMPONENTS:
        _component(component, reader, values, notes)
    config = values.setdefault("config", {})
    for path, default in () if is_file else _DEFAULTS.items():
        key = path.partition(".")[2]
        if key not in config:
            config[key] = default
            notes.append(Note("changed", path, f"set to {default!r}, the default of slurm-bridge's chart"))
    if "managedNamespaceSelector" in config and config.pop("managedNamespaces", None):
        notes.append(Note("dropped", "admission.managedNamespaces", "managedNamespaceSelector replaces it"))
    _certificates(is_file, values, notes)
    _behaviour(allow_all, exclusive, config, notes)
    for path in reader.rest():
        why = next(
            (text for key, text in _WHY.items() if key in path.split(".")), "podbridge's chart has no such value"
        )
        notes.append(Note("dropped", path, why))
    configuration.parse(yaml.safe_dump(config), source)
    return Converted((values,), tuple(notes))


def _sections_of(data: Mapping[str, Any]) -> Object:
    """Return the keys of a ``config.yaml`` in the sections of the chart, other keys as they are."""
    sections: Object = {}
    for key, value in data.items():
        (sections.setdefault(_FILE[key], {}) if key in _FILE else sections)[key] = value
    return sections


def _name_and_key(data: Object) -> None:
    """Replace the Secret of the token by its name and key: versions 1.0 to 1.2 of the chart have the name alone."""
    match data:
        case {"sharedConfig": {"slurmJwtSecret": str(name)}}:
            data["sharedConfig"]["slurmJwtSecret"] = {"name": name, "key": "auth-token"}
        case {"sharedConfig": {"slurmJwtSecret": {"name": _} as secret}} if secret.get("key") is None:
            secret["key"] = "SLURM_JWT"


def _component(name: str, reader: ValuesReader, values: Object, notes: list[Note]) -> None:
    for key, (target, kind) in _COMPONENT.items():
        value = reader.take(f"{name}.{key}", kind)
        if value is not None:
            put(values, f"{name}.{target}", value)
            if key != target:
                notes.append(Note("changed", f"{name}.{key}", f"is {name}.{target}"))
    disruption = values.get(name, {}).get("pdb", {})
    if "maxUnavailable" in disruption and disruption.pop("minAvailable", None) is not None:
        notes.append(Note("dropped", f"{name}.pdb.minAvailable", "maxUnavailable has precedence in slurm-bridge"))
    verbosity = reader.take(f"{name}.verbosity", "count")
    if verbosity is not None and verbosity >= 4:  # the level of debug messages in klog
        put(values, "config.logging.level", "debug")
        notes.append(Note("changed", f"{name}.verbosity", f"{verbosity} is config.logging.level: debug"))
    elif verbosity is not None:
        notes.append(Note("dropped", f"{name}.verbosity", "config.logging.level is the level of all components"))


def _certificates(is_file: bool, values: Object, notes: list[Note]) -> None:
    admission = values.get("admission", {})
    if admission.get("tls", {}).get("existingSecret"):
        notes.append(Note("to do", "admission.tls.existingSecret", "the Secret also needs the key ca.crt"))
    elif not is_file and "enabled" not in admission.get("certManager", {}):
        text = "not set, so podbridge creates its own certificate; true: cert-manager creates it, as in slurm-bridge"
        notes.append(Note("changed", "admission.certManager.enabled", text))


def _behaviour(allow_all: bool, exclusive: bool, config: Object, notes: list[Note]) -> None:
    """Add what slurm-bridge does by default and podbridge does not, or a note."""
    config["nodes"] = {"taint": True}
    notes.append(Note("changed", "config.nodes.taint", "true, as in slurm-bridge: nodes of Slurm evict other pods"))
    if allow_all:
        config["namespacePolicies"] = [_OPEN_POLICY]
    else:
        text = (
            f"pods may not choose {', '.join(_MODES)}, whole nodes or several nodes without a policy; --allow-all adds "
            f"one that allows all values"
        )
        notes.append(Note("to do", "config.namespacePolicies", text))
    if exclusive:
        config["exclusive"] = True
    else:
        text = "pods share nodes, in slurm-bridge a pod gets a whole node; --exclusive keeps this"
        notes.append(Note("changed", "config.exclusive", text))
