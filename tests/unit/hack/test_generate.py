"""./hack/generate.sh: what it generates is up to date, and ``--check`` names what is not. Without Helm."""

import pytest

from generate import __main__ as generate

GENERATORS = (*generate.WITHOUT_HELM, generate.roles.files)


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.__module__)
def test_the_generated_files_are_up_to_date(generator):
    assert not list(generate.stale(generator)), "run ./hack/generate.sh"


def test_a_stale_file_is_named_then_written(tmp_path, monkeypatch, capsys):
    file, right = tmp_path / "folder" / "page.md", tmp_path / "right.md"
    right.write_text("as generated")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "ALL", (lambda: {file: "new", right: "as generated"},))
    monkeypatch.setattr(generate, "WITHOUT_HELM", generate.ALL)
    monkeypatch.setattr(generate.roles, "files", dict)
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "out of date: folder/page.md: run ./hack/generate.sh\n"
    assert not file.exists()
    assert generate.main([]) == 0
    assert (file.read_text(), capsys.readouterr().out) == ("new", "written: folder/page.md\n")
    assert generate.main(["--check"]) == 0


def test_an_unknown_option_is_refused(capsys):
    assert generate.main(["--all"]) == 2
    assert "usage: hack/generate.sh [--check]" in capsys.readouterr().out
