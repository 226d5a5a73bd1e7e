import pytest

from bridge import names
from bridge.workload import consent


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
