import pytest

from bridge import names
from bridge.config import hub, policies
from bridge.config.base import LabelSelector, LabelSelectorRequirement
from bridge.errors import ConfigError


def test_slurm_bridges_own_file_works_as_it_is():
    text = """
    schedulerName: slurm-bridge-scheduler
    slurmRestApi: http://slurm-restapi.slurm:6820
    managedNamespaces: [slurm-bridge]
    managedNamespaceSelector: {}
    mcsLabel: kubernetes
    partition: slurm-bridge
    """
    found = hub.parse(text)
    assert (found.mcs_label, found.partition, found.managed_namespace_selector) == ("kubernetes", "slurm-bridge", None)


def test_an_empty_file_is_the_defaults():
    assert hub.parse("") == hub.Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shedulerName: x", ["shedulerName", "did you mean schedulerName?"]),
        ("slurm: {pollBsy: 1}", ["slurm.pollBsy", "did you mean pollBusy?"]),
        ("nodes: {frobnicate: 1}", ["nodes.frobnicate", "known keys: selector, taint, drain, cordon"]),
        ("workers: 999", ["workers", "999", "64"]),
        ("workers: many", ["workers", "'many'"]),
        ("schedulerName: Not A Name", ["schedulerName", "'Not A Name'"]),
        ("slurmRestApi: ftp://x", ["slurmRestApi", "ftp://x", "unix:///"]),
        ("slurmRestApi: http://", ["slurmRestApi", "must have a host"]),
        ("slurmRestApi: 'http://[::1'", ["slurmRestApi", "must have a host"]),
        ("admission: {certValidity: .inf}", ["admission.certValidity", "inf"]),
        ("slurmApiVersion: '45'", ["slurmApiVersion", "'45'"]),
        ("placeholder: sleepy", ["placeholder", "'sleepy'", "external"]),
        ("managedNamespaces: slurm", ["managedNamespaces", "'slurm'"]),
        ("managedNamespaceSelector: {matchLabel: {a: b}}", ["matchLabel", "did you mean matchLabels?"]),
        ("leaderElection: {leaseDuration: 5}", ["leaderElection", "leaseDuration > renewDeadline"]),
        ("logging: {level: loud}", ["logging.level", "'loud'", "debug"]),
        ("- a\n- b", ["must be a mapping"]),
        ("a: [", ["not YAML"]),
        ("pools: {{ pools }}", ["not YAML", "unhashable"]),
        ("partition: 2024-99-99", ["not YAML", "'2024-99-99' is not allowed: month must be in 1..12", "line 1"]),
        ("slurm:\n  readTimeout: !!float five", ["not YAML", "'five'", "line 2"]),
        ("workers: " + "1" * 5000, ["not YAML", "4300 digits", "line 1"]),
        ("a: " + "[" * 5000, ["not YAML", "nested too deep"]),
        ("pools:", ["pools: must be a mapping of keys (value: None)"]),
        ("partition: [" + "abcdefgh," * 1000 + "]", ["partition: ", "'abcdefgh'", "..."]),
        ("namespacePolicies: [{namespaces: [A]}]", ["namespacePolicies.0.namespaces.0: ", "'A'"]),
        ("managedNamespaceSelector: {matchLabels: {a: b c}}", ["managedNamespaceSelector.matchLabels.a: ", "'b c'"]),
        ("nodes: {selector: {matchLabels: {'a b': c}}}", ["nodes.selector.matchLabels.a b", "'a b'"]),
        (
            "managedNamespaceSelector: {matchExpressions: [{key: a, operator: In}]}",
            ["matchExpressions.0: values: must not be empty with operator In"],
        ),
        (
            "nodes: {selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}",
            ["nodes.selector.matchExpressions.0: values: must be empty with operator Exists"],
        ),
        ("defaultSchedulerNodes: {a: b c}", ["defaultSchedulerNodes.a: ", "'b c'"]),
        ("admission: {url: 'http://a:9443'}", ["admission.url: must be https://HOST:PORT", "'http://a:9443'"]),
        ("admission: {url: 'https://:9443'}", ["admission.url: must be https://HOST:PORT"]),
        ("admission: {serviceNamespace: A}", ["admission.serviceNamespace: ", "'A'"]),
        ("serving: {healthPort: 81, metricsPort: 81}", ["serving: metricsPort: 81 is healthPort, too"]),
        ("leaderElection: {namespace: ''}", ["leaderElection.namespace: ", "''"]),
        ("gres: {nvidia.com/gpu: 'gpu;a'}", ["gres.nvidia.com/gpu: ", "'gpu;a'"]),
        ("deviceClasses: {gpu.nvidia.com: ''}", ["deviceClasses.gpu.nvidia.com: ", "''"]),
        ("partition: a\nmcsLabel: x\npartition: b\n", ["duplicate key partition: lines 1, 3"]),
        ("pools: {}\nslurm:\n  readTimeout: 5\n  readTimeout: 6\n", ["duplicate key readTimeout: lines 3, 4"]),
    ],
)
def test_bad_files_are_refused_by_name(text, words):
    with pytest.raises(ConfigError) as caught:
        hub.parse(text, "file.yaml")
    assert str(caught.value).startswith("file.yaml: ")
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_wrong_name_of_the_installation_is_named_alone():
    with pytest.raises(ConfigError) as caught:
        hub.parse("installation: UPPER")
    assert str(caught.value).count("UPPER") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("slurmRestApi: 'ftp://user:secret@host'", "must begin with http://"),
        (
            "pools: {store: {kind: redis, redis: {url: 'redis://user:secret@host/0'}}}",
            "must be redis://host:port/database",
        ),
        ("slurmRestApi: 'http://user:secret@host:6820'", "must have no user and no password"),
        ("pools: {nats: {servers: ['nats://user:secret@host:4222']}}", "no user and no password"),
        ("pools: {nats: {servers: ['user:secret@host']}}", "user:***@host"),
        ("pools: {nats: {servers: 'nats://user:secret@host'}}", "nats://***@host"),
    ],
)
def test_a_password_in_a_value_is_masked(text, shown):
    with pytest.raises(ConfigError) as refused:
        hub.parse(text)
    assert shown in str(refused.value)
    assert "***@host" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "Value error" not in str(refused.value)


def test_the_token_comes_from_file_then_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JWT", "value")
    assert hub.jwt_source(hub.Config()) == "value"
    monkeypatch.setenv("SLURM_JWT_FILE", str(tmp_path / "t"))
    assert hub.jwt_source(hub.Config()) == tmp_path / "t"
    assert hub.jwt_source(hub.parse("slurm: {jwtFile: /x}")).name == "x"


def test_pools_are_off_without_a_server_and_need_one_where_there_is_no_slurm():
    assert not hub.Config().pools.enabled
    found = hub.parse("{slurmRestApi: '', pools: {nats: {servers: ['tls://n:4222']}, weights: {a: 2}}}")
    assert found.pools.enabled
    assert (found.pools.silent_after, found.pools.nats.prefix, found.pools.weights) == (30, "bridge.v1", {"a": 2})
    with pytest.raises(
        ConfigError, match=r"no pool is configured: set it, or one of pools\.interlink, pools\.nunet, pools\.nats"
    ):
        hub.parse("slurmRestApi: ''")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nats: {servers: ['http://n']}", "servers"),
        ("nats: {servers: ['nats://n'], prefix: 'a..b'}", "prefix"),
        ("nats: {sever: []}", "did you mean servers?"),
        ("policy: cheapest", "least-loaded"),
        ("weights: {a: 0}", "weights"),
    ],
)
def test_bad_pools_are_refused_by_name(text, word):
    with pytest.raises(ConfigError, match=word.replace("?", "[?]")):
        hub.parse(f"pools: {{{text}}}")


POLICY = "namespacePolicies: [{namespaces: [a], %s}]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("namespacePolicies: [{allowed: {qos: [x]}}]", ["namespacePolicies.0", "namespaceSelector"]),
        (POLICY % "namespaceSelector: {}", ["namespacePolicies.0", "either"]),
        (POLICY % "alowed: {}", ["unknown key namespacePolicies.0.alowed", "did you mean allowed"]),
        (POLICY % "allowed: {acount: [x]}", ["namespacePolicies.0.allowed.acount", "did you mean account"]),
        (POLICY % "allowed: {qos: ['a b']}", ["namespacePolicies.0.allowed.qos.0", "'a b'"]),
        (POLICY % "default: {account: 'a,b'}", ["namespacePolicies.0.default.account", "'a,b'"]),
        (POLICY % "default: {account: '*'}", ["namespacePolicies.0.default.account", "'*'"]),
        (
            "partition: main\n" + POLICY % "allowed: {partition: [gpu]}",
            ["namespacePolicies[0].allowed.partition", "'main'", "namespacePolicies[0].default.partition"],
        ),
        ("namespacePolicies: [{namespaces: ['*']}, {namespaces: [a]}]", ["namespacePolicies[1]", "never used"]),
        (POLICY % "default: {userId: 'root; id'}", ["namespacePolicies.0.default.userId", "'root; id'"]),
        (POLICY % "max: {cpuPerTask: 65534}", ["namespacePolicies.0.max.cpuPerTask", "65534"]),
        (POLICY % "default: {userId: '١٢'}", ["namespacePolicies.0.default.userId", "'١٢'"]),
        (POLICY % "default: {licenses: 'matlab:٣'}", ["namespacePolicies.0.default.licenses"]),
        (POLICY % "groups: ['']", ["namespacePolicies.0.groups.0"]),
        (
            "namespacePolicies: [{namespaces: ['*'], groups: [g]}, {namespaces: [a], groups: [g]}]",
            ["namespacePolicies[1]", "never used"],
        ),
        ("namespacePolicies: [{namespaces: [a]}, {namespaces: [a]}]", ["namespacePolicies[1].namespaces", "already"]),
    ],
)
def test_a_wrong_policy_is_named(text, words):
    with pytest.raises(ConfigError) as told:
        hub.parse(text)
    assert [word for word in words if word not in str(told.value)] == []


def test_a_policy_for_a_group_leaves_other_users_to_the_next():
    text = """
namespacePolicies:
- {namespaces: ["*"], groups: [physicists, chemists], default: {userId: bob}}
- {namespaces: [a], default: {userId: alice}}
"""
    found = hub.parse(text).namespace_policies

    def user(groups=(), namespace="a"):
        return policies.find(found, namespace, {}, groups).default_of(names.USER_ID)

    assert user(["staff", "chemists"]) == "bob"
    assert user(["staff"]) == user() == "alice"
    assert user(namespace="b") is None


@pytest.mark.parametrize(
    ("rows", "labels", "allowed"),
    [
        ("", {}, True),
        ("- {namespaces: [a], expose: false}", {}, False),
        ("- {namespaces: [b], expose: false}", {}, True),
        ("- {namespaces: [a], groups: [g], expose: false}", {}, True),
        ("- {namespaces: [a], groups: [g], expose: false}\n- {namespaces: ['*'], expose: false}", {}, False),
        ("- {namespaces: [a], groups: [g]}\n- {namespaces: ['*'], expose: false}", {}, True),
        ("- {namespaces: [a], expose: false}\n- {namespaces: ['*'], groups: [g]}", {}, False),
        ("- {namespaceSelector: {matchLabels: {team: x}}, expose: false}", {"team": "x"}, False),
        ("- {namespaceSelector: {matchLabels: {team: x}}, expose: false}", {"team": "y"}, True),
    ],
)
def test_a_namespace_may_expose_if_one_of_its_groups_may(rows, labels, allowed):
    found = hub.parse(f"namespacePolicies:\n{rows}" if rows else "{}").namespace_policies
    assert policies.may_expose(found, "a", labels) == allowed


def test_the_first_policy_that_selects_a_namespace_holds():
    text = """
partition: main
namespacePolicies:
- namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [guests]}]}
  default: {account: staff}
- namespaces: ["*"]
  allowed: {partition: [main, short], licenses: [matlab@srv]}
"""
    found = hub.parse(text).namespace_policies
    assert policies.find(found, "a", {}).default_of(names.ACCOUNT) == "staff"
    guests = policies.find(found, "a", {"team": "guests"})
    assert guests.default_of(names.ACCOUNT) is None
    assert guests.allowed_of(names.PARTITION, "main") == ["main", "short"]
    assert policies.NOTHING.allowed_of(names.PARTITION, "main") == ["main"]
    assert policies.NOTHING.allowed_of(names.PARTITION, "") == []


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ["a"], {"k": "a"}, True),
        ("In", ["a"], {}, False),
        ("NotIn", ["a"], {"k": "a"}, False),
        ("NotIn", ["a"], {}, True),
        ("Exists", [], {"k": ""}, True),
        ("DoesNotExist", [], {"k": ""}, False),
        ("DoesNotExist", [], {}, True),
    ],
)
def test_a_label_selector_selects_as_in_kubernetes(operator, values, labels, expected):
    expression = LabelSelectorRequirement(key="k", operator=operator, values=values)
    assert LabelSelector(match_expressions=[expression]).matches(labels) is expected
    assert LabelSelector(match_labels={"m": "1"}, match_expressions=[expression]).matches(labels) is False


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("managedNamespaces: [a, kube-system]", "kube-system"),
        ("managedNamespaces: [kube-public]", "kube-public"),
        ("managedNamespaces: [kube-node-lease]", "kube-node-lease"),
        ("managedNamespaces: [podbridge]", "podbridge"),
        ("installation: second\nmanagedNamespaces: [second]", "second"),
        ("managedNamespaces: [own]\nadmission: {serviceNamespace: own}", "own"),
        ("managedNamespaces: [kube-system]\nadmission: {url: https://webhook}", "kube-system"),
    ],
)
def test_namespaces_of_kubernetes_and_of_podbridge_are_refused_by_name(text, name):
    with pytest.raises(ConfigError, match=f"managedNamespaces: '{name}' is not allowed"):
        hub.parse(text)
    selected = hub.parse(text.replace("[kube-system]", "[a]") + "\nmanagedNamespaceSelector: {matchLabels: {a: b}}")
    assert name in hub.unmanaged_namespaces(selected)
    assert not hub.protected_namespace(selected), "a selector never selects them, and the list is ignored"
