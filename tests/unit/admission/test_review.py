import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.review import MalformedReviewError, allow, deny, parse
from admission.reviewer import summary
from tests.unit.admission.test_app import review

POD = {"metadata": {"name": "p"}, "spec": {"containers": []}}


def body(**changes: Any) -> bytes:
    return json.dumps(review(POD, **{"namespace": "ns", "oldObject": None, **changes})).encode()


def test_the_message_about_many_or_long_problems_is_short() -> None:
    assert summary(["one"]) == "one"
    assert summary(["one", "two"]) == "2 problems: one; two"
    text = summary([f"{number}: {'x' * 100_000}" for number in range(6000)])
    assert text.startswith("6000 problems: 0: xxx")
    assert text.endswith("; and 5980 more")
    assert len(text) < 25_000
    shown = allow("u", warnings=[f"{number} {'x' * 1000}" for number in range(6000)])["response"]["warnings"]
    assert len(shown) == 16
    assert sum(map(len, shown)) <= 4096
    assert shown[-1] == "5985 more warnings"


def test_a_review_is_read() -> None:
    found = parse(body())
    assert (found.uid, found.operation, found.subresource, found.namespace) == ("u", "CREATE", "", "ns")
    assert (found.user_name, found.object, found.old) == ("alice", POD, {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[]", "not an object"),
        (b"{}", "AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', "admission.k8s.io/v1"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "request"),
        (body(uid=""), "uid"),
        (body(uid=7), "uid"),
        (body(operation="LOOK"), "LOOK"),
        (body(resource={"group": "apps", "resource": "pods"}), "must be pods"),
        (body(resource={"resource": "secrets"}), "secrets"),
        (body(object=None), "object"),
        (body(object={"metadata": {}}), "spec"),
        (body(object="pod"), "object"),
        (body(operation="UPDATE"), "oldObject"),
        (body(userInfo=[1]), "userInfo"),
    ],
)
def test_what_is_no_review_is_told(text: bytes, word: str) -> None:
    with pytest.raises(MalformedReviewError, match=word):
        parse(text)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(text: bytes) -> None:
    with pytest.raises(MalformedReviewError):
        parse(text)


def test_answers() -> None:
    assert allow("u")["response"] == {"uid": "u", "allowed": True}
    patched = allow("u", [{"op": "remove", "path": "/spec/nodeName"}], ["careful"])["response"]
    assert json.loads(base64.b64decode(patched["patch"])) == [{"op": "remove", "path": "/spec/nodeName"}]
    assert patched["patchType"] == "JSONPatch"
    assert patched["warnings"] == ["careful"]
    denied = deny("u", "no", code=503, reason="ServiceUnavailable", retry_after=2, warnings=["x" * 300])["response"]
    assert denied["status"]["details"] == {"retryAfterSeconds": 2}
    assert denied["status"]["code"] == 503
    assert len(denied["warnings"][0]) == 256
    assert not denied["allowed"]
