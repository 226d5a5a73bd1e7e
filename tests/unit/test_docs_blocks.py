import os
import re

import pytest

from tests.docs_blocks import DOCS, RUN_BY, Shell, blocks

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


PAGES = ("quick-start.md", "install.md")
TOKENS = [block for page in PAGES for block in blocks(DOCS / page) if "scontrol token" in block.text]
STUBS = {
    "kubectl": 'echo "$*" >>calls; case "$*" in *secret*) cat >>secret ;; *replace*) cat ;; esac',
    "scontrol": "cat printed",
}


def test_four_blocks_store_a_token():
    assert len(TOKENS) == 4


@pytest.mark.parametrize("block", TOKENS, ids=lambda block: block.where)
def test_a_token_is_stored_only_if_scontrol_succeeds_and_is_in_no_command_line(tmp_path, block):
    for name, script in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    file, secret, calls = (tmp_path / name for name in ("token", "secret", "calls"))
    calls.touch()
    file.write_text("old")
    shell = Shell({"PATH": f"{tmp_path}:{os.environ['PATH']}"}, tmp_path, {"/path/to/token": "token"})
    with pytest.raises(AssertionError, match="printed: No such file"):
        shell.run(block)
    assert not secret.exists() and "secret" not in calls.read_text() and file.read_text() == "old"
    (tmp_path / "printed").write_text("SLURM_JWT=a.b.c\n")
    shell.run(block)
    assert (secret if "kubectl" in block.text else file).read_text() == "a.b.c"
    assert "a.b.c" not in calls.read_text()
