import os
from pathlib import Path

import pytest

from tests.docs_blocks import DOCS, RUN_BY, Shell, blocks

PAGE = """\
Text.

```sh
kubectl get pods
podbridge get pods \\
  -A
```

<!-- not run: needs a registry -->

```sh
docker push x
```

```text
docker push x
```

<!-- not run: forgotten -->
More text.

1. In a list:

    <!-- not run: another reason -->

    ```sh
    helm install \\
      podbridge
    ```

```yaml
kubectl: none
```
```sh
echo fenced

echo again
```
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
    ]


def test_a_block_is_named_by_its_line(found):
    assert [block.where for block in found][:2] == ["page.md:3", "page.md:11"]


def run_by_tests():
    """Return the pages of tasks that have commands which are not marked."""
    others = ("dashboard", "releases", "tracing")
    pages = [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if path.parent.name not in ("developers", "reference") and path.stem not in others
    ]
    assert len(pages) > 25
    return [str(path.relative_to(DOCS)) for path in pages if any(not block.reason for block in blocks(path))]


def test_a_test_runs_the_commands_of_each_page():
    assert sorted(RUN_BY) == sorted(run_by_tests())


@pytest.mark.parametrize("page", sorted(RUN_BY))
def test_the_test_of_a_page_names_it(page):
    for file in RUN_BY[page]:
        assert Path(page).stem in (DOCS.parent / file).read_text()


PAGES = ("quick-start.md", "admins/install.md")
TOKENS = [block for page in PAGES for block in blocks(DOCS / page) if "scontrol token" in block.text]
STUBS = {
    "kubectl": 'echo "$*" >>calls; case "$*" in *secret*) cat >>secret ;; *replace*) cat ;; esac',
    "scontrol": "cat printed",
}


def test_three_blocks_store_a_token():
    assert len(TOKENS) == 3


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
