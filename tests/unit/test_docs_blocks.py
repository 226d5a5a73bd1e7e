import pytest

from tests.docs_blocks import blocks

PAGE = """\
Text.

    kubectl get pods
    podbridge get pods \\
      -A

<!-- not run: needs a registry -->

    docker push x

    key: value

<!-- not run: forgotten -->
More text.

1. In a list:

   <!-- not run: another reason -->

       helm install \\
         podbridge

```yaml
kubectl: none
```
```sh
echo fenced

echo again
```
    ./hack/down.sh
"""


@pytest.fixture
def found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return list(blocks(page))


def test_commands_and_reasons(found):
    assert [(block.text, block.reason) for block in found] == [
        ("kubectl get pods\npodbridge get pods \\\n  -A", ""),
        ("docker push x", "needs a registry"),
        ("helm install \\\n  podbridge", "another reason"),
        ("echo fenced\n\necho again", ""),
        ("./hack/down.sh", ""),
    ]


def test_a_block_is_named_by_its_line(found):
    assert [block.where for block in found][:2] == ["page.md:3", "page.md:9"]
