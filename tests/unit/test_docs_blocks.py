import re

import pytest

from tests.docs_blocks import DOCS, RUN_BY, blocks

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


def run_by_tests():
    """Return the pages of the sections that have commands which are not marked."""
    nav = (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    parts = re.split(r"(?m)^  - (.+):\n", nav)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    pages = [
        name
        for section in ("Start", "Concepts", "How-to", "Switching")
        for name in re.findall(r"[\w/-]+\.md", sections[section])
        if (DOCS / name).exists()
    ]
    assert len(pages) > 25
    return [name for name in pages if any(not block.reason for block in blocks(DOCS / name))]


def test_a_test_runs_the_commands_of_each_page():
    assert sorted(RUN_BY) == sorted(run_by_tests())


@pytest.mark.parametrize("page", sorted(RUN_BY))
def test_the_test_of_a_page_names_it(page):
    for file in RUN_BY[page]:
        assert page.removeprefix("switch/").removesuffix(".md") in (DOCS.parent / file).read_text()
