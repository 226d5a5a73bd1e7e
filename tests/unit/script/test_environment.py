"""Variables, and ``$(NAME)``, as a kubelet has them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MissingReferenceError, ScriptError
from bridge.script import environment
from bridge.script.quoting import ADDRESS, Allowance
from bridge.script.references import Objects
from bridge.script.settings import ApiServer

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "annotations": {"x/y": "z"}},
    "spec": {},
}
MACHINE = {"cpu": Decimal(4), "memory": Decimal(2**30)}
OBJECTS = Objects(
    configmaps={"c": {"data": {"a": "1", "b.c": "2", "B": "3"}, "binaryData": {"raw": "AP8="}}},
    secrets={"s": {"data": {"a": "c2VjcmV0"}}},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$", "$$"),
        ("$(B)", "$(B)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("a$(A)b$(E)c", "a1bc"),
        ("$", "$"),
        ("$()", "$()"),
        ("$(A)$(A)", "11"),
        ("$($(A))", "$($(A))"),
    ],
)
def test_expand(text, expected):
    assert environment.expand(text, {"A": "1", "E": ""}) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [("a$(A)$$(B)$", []), ("$(B)", ["B"]), ("$$$(B)$(A)$(C)", ["B", "C"]), ("$()", [""]), ("$(B", [])],
)
def test_names_that_are_not_set(text, names):
    assert environment.not_set(text, {"A": "$(B)"}) == names


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text()))
def test_expand_leaves_text_without_dollars_alone(text, values):
    assert environment.expand(text.replace("$", ""), values) == text.replace("$", "")


@given(st.text())
def test_doubled_dollars_come_back(text):
    assert environment.expand(text.replace("$", "$$"), {"A": "1"}) == text


@given(st.text("$()A"))
def test_references_are_read_from_left_to_right(text):
    expected, rest = "", text
    while rest:
        name, end, after = rest[2:].partition(")")
        if rest.startswith("$$"):
            expected, rest = expected + "$", rest[2:]
        elif rest.startswith("$(") and end:
            expected, rest = expected + {"A": "1"}.get(name, f"$({name})"), after
        else:
            expected, rest = expected + rest[0], rest[1:]
    assert environment.expand(text, {"A": "1"}) == expected


def test_references_without_an_end_take_no_hours():
    text = "$(A" * 300_000
    assert environment.expand(text, {"A": "1"}) == text
    assert environment.not_set(text, {}) == []
    assert environment.expand(f"$(A)$${text}", {"A": "1"}) == f"1${text}"


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="="), min_size=1)


@given(PRINTABLE, st.text())
def test_names_of_all_kinds_are_expanded(name, value):
    """Up to the first ``)``, as a kubelet reads them."""
    whole = ")" not in name
    assert environment.expand(f"<$({name})>", {name: value}) == (f"<{value}>" if whole else f"<$({name})>")


def make_all(container, objects=OBJECTS):
    return environment.make(POD, container, "spec.containers[0]", objects, "node", MACHINE, Allowance())


def make(container, objects=OBJECTS):
    return make_all(container, objects).values


def test_order_and_precedence():
    made = make(
        {
            "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
            "env": [
                {"name": "X", "value": "$(a)-$(LATER)"},
                {"name": "B", "value": "own"},
                {"name": "LATER", "value": "l"},
                {"name": "Y", "value": "$(X)$(LATER)"},
            ],
        }
    )
    assert made == {
        "a": "secret",
        "b.c": "2",
        "B": "own",
        "X": "secret-$(LATER)",
        "LATER": "l",
        "Y": "secret-$(LATER)l",
    }


def test_prefix():
    for prefix in ("P_", "-p.", "1", "a b$"):
        made = make({"envFrom": [{"configMapRef": {"name": "c"}, "prefix": prefix}]})
        assert made == {f"{prefix}a": "1", f"{prefix}b.c": "2", f"{prefix}B": "3"}


@given(PRINTABLE, PRINTABLE, st.text().filter(lambda text: "\x00" not in text and text.isascii()))
def test_no_name_is_dropped(key, name, value):
    """The API server restricts keys further; here all names are taken that it lets through for ``env``."""
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}}, {"configMapRef": {"name": "c"}, "prefix": "p."}],
        "env": [{"name": name, "value": value.replace("$", "$$")}],
    }
    made = make_all(container, Objects(configmaps={"c": {"data": {key: value}}}))
    assert made.values == {key: value, f"p.{key}": value, name: value}
    assert made.fields == {
        key: f"spec.containers[0].envFrom[0], key {key!r}",
        f"p.{key}": f"spec.containers[0].envFrom[1], key {key!r}",
        name: "spec.containers[0].env[0].name",
    }


@pytest.mark.parametrize("key", ["", "a=b", "a\n", "ä", "a\x7f", "a\x00"])
def test_keys_that_are_no_names_of_variables_are_refused(key):
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]\.envFrom\[0\], key .* allowed: printable ASCII"):
        make({"envFrom": [{"configMapRef": {"name": "c"}}]}, Objects(configmaps={"c": {"data": {key: "x"}}}))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['a']", "b"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['x/y']", "z"),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", ADDRESS),
        ("status.hostIPs", ADDRESS),
    ],
)
def test_field(path, expected):
    assert make({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}) == {"X": expected}


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "1024"),
        ("requests.memory", None, "0"),
        ("limits.memory", "0", str(2**30)),
    ],
)
@pytest.mark.parametrize("zero", [None, "0", "0Gi"])
def test_resource(resource, divisor, expected, zero):
    container = {
        "resources": {"limits": {"cpu": "1500m", **({} if zero is None else {"memory": zero})}},
        "env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}],
    }
    assert make(container) == {"X": expected}


@pytest.mark.parametrize("kind", ["configMapKeyRef", "secretKeyRef"])
@pytest.mark.parametrize("name", ["s", "c", "not-there"])
def test_missing(kind, name):
    reference = {"name": name, "key": "not-there"}
    with pytest.raises(MissingReferenceError):
        make({"env": [{"name": "X", "valueFrom": {kind: reference}}]})
    assert make({"env": [{"name": "X", "valueFrom": {kind: {**reference, "optional": True}}}]}) == {}


def test_env_from_that_is_missing():
    with pytest.raises(MissingReferenceError, match="ConfigMap 'no' does not exist"):
        make({"envFrom": [{"configMapRef": {"name": "no"}}]})
    assert make({"envFrom": [{"secretRef": {"name": "no", "optional": True}}]}) == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "", "value": "x"},
        {"name": "A=B", "value": "x"},
        {"name": "A\n", "value": "x"},
        {"name": "Ä", "value": "x"},
        {"name": "A", "value": "x\x00"},
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.hostname"}}},
        {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}},
        {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "x"}}},
        {"name": "A", "valueFrom": {"fileKeyRef": {"path": "x"}}},
    ],
)
def test_refused(entry):
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]"):
        make({"env": [entry]})


def test_a_secret_that_is_no_text():
    with pytest.raises(ScriptError, match="not UTF-8"):
        make({"envFrom": [{"secretRef": {"name": "s"}}]}, Objects(secrets={"s": {"data": {"A": "/w=="}}}))


PEM = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://k8s.example:6443", "k8s.example", "6443"),
        ("https://k8s.example", "k8s.example", "443"),
        ("https://[2001:db8::7]:6443", "2001:db8::7", "6443"),
        ("https://[2001:db8::7]", "2001:db8::7", "443"),
        ("https://10.0.0.7:443", "10.0.0.7", "443"),
    ],
)
def test_where_the_api_server_is(url, host, port):
    service = ApiServer(url=url, ca=PEM).environment
    assert (service["KUBERNETES_SERVICE_HOST"], service["KUBERNETES_SERVICE_PORT"]) == (host, port)
    own = {"name": "c", "env": [{"name": "URL", "value": "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"}]}
    made = environment.make(POD, own, "spec.containers[0]", Objects(), "node", MACHINE, Allowance(), service)
    assert made.values == {**service, "URL": f"{host}:{port}"}


@pytest.mark.parametrize("url", ["http://k8s.example", "k8s.example:6443", "https://k8s.example/path", "https://a b"])
def test_what_is_no_address_of_an_api_server_is_refused(url):
    with pytest.raises(ValueError, match="url"):
        ApiServer(url=url, ca=PEM)
    with pytest.raises(ValueError, match="ca"):
        ApiServer(url="https://k8s.example", ca="/etc/ca.crt")
    with pytest.raises(ValueError, match="both, or neither"):
        ApiServer(url="https://k8s.example")
