import pytest

from admission.review import MAX_WARNING
from bridge import names
from bridge.kube.prune import prune_pod
from bridge.script import consent
from tests.unit.script.pods import KINDS, pod


@pytest.mark.parametrize(
    ("text", "lets"),
    [
        (None, False),
        ("", False),
        ("site", True),
        ("other, site", True),
        ("*", True),
        ("other", False),
        ("site/", False),
        ("*, /", False),
        ("sites", False),
    ],
)
def test_a_namespace_names_the_pools_that_its_secrets_may_go_to(text, lets):
    annotations = {} if text is None else {names.POOL_SECRETS: text}
    assert consent.lets_secrets_go(annotations, "site") is lets


def test_the_annotation_that_opens_pools_does_not_let_secrets_go():
    assert not consent.lets_secrets_go({names.POOLS: "*"}, "site")


@pytest.mark.parametrize(
    ("text", "asked", "refused"),
    [
        (None, ["a"], True),
        ("b", ["a"], True),
        ("b", ["a", "b"], False),
        ("*", ["a"], False),
        ("b", ["*"], False),
        (None, ["*"], True),
        ("/", ["*", "a"], True),
        ("b", ["local", "a"], True),
    ],
)
def test_a_pod_whose_secrets_no_pool_may_have(text, asked, refused):
    annotations = {} if text is None else {names.POOL_SECRETS: text}
    assert consent.refused_by_all(annotations, asked) is refused


AUTOMATIC = {
    "name": "kube-api-access-x",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]},
}
VAULT = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({}, ""),
        ({"volumes": [AUTOMATIC]}, ""),
        ({"volumes": [AUTOMATIC, VAULT]}, "service account tokens"),
        ({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}, ""),
        ({"volumes": [{"name": "v", "secret": {"secretName": "b", "optional": True}}]}, "Secret b"),
        ({"imagePullSecrets": [{"name": "pull"}], "volumes": [VAULT]}, "Secret pull, service account tokens"),
        ({"imagePullSecrets": [{"name": name} for name in "edcba"]}, "Secret a, Secret b, Secret c, 2 more Secrets"),
    ],
)
def test_what_needs_the_consent_at_any_site(spec, what):
    assert consent.confidential_everywhere(pod({"containers": [], **spec})) == what


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_pod_in_the_cache_needs_the_consent_that_the_whole_pod_needs(kind):
    whole = KINDS[kind]
    assert consent.confidential_everywhere(prune_pod(whole)) == consent.confidential_everywhere(whole)


def test_a_warning_fits_what_the_api_server_shows():
    text = consent.warning("slurm-bridge", ["local", "site-a", "site-b"], "Secret registry-credentials")
    assert len(text) <= MAX_WARNING
    assert "pool site-a, site-b" in text
    assert "any pool" in consent.warning("ns", ["*"], "Secret s")
