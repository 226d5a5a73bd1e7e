"""The scripts that make mount namespaces: valid shell, everything quoted, whatever the folders are called."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from cluster import views

ODD = Path("/roots/it's a $(touch x) folder")


def inner(text):
    """What the outer shell hands to the inner one."""
    line = next(line for line in text.splitlines() if line.startswith("exec unshare"))
    begin = text.index(line)
    words = text[begin:].split(" sh -ec ", 1)[1]
    return shlex.split(words)[0]


@pytest.mark.parametrize("root", [Path("/"), ODD])
@pytest.mark.parametrize("folder", [Path("/state"), ODD])
def test_both_shells_read_every_script(root, folder, tmp_path):
    outer = [views.root_view(folder, root, {"A": "it's"}), views.user_view(folder, 123, [], {"A": "it's"}, root)]
    texts = [*outer, *map(inner, outer), views.tool_view(root, 123, {"A": "it's"})]
    for text in texts:
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_a_root_folder_is_gone_to_by_pivot_root_for_a_chroot_may_make_no_user_namespace():
    assert "pivot_root" in views.root_view(Path("/state"), ODD, {})
    assert "pivot_root" not in views.root_view(Path("/state"), Path("/"), {})


def test_what_lies_in_closed_folders_is_kept_and_the_rest_of_them_hidden(tmp_path):
    closed = tmp_path / "closed"
    for name in ("closed/venv", "closed/own secrets", "open/checkout"):
        (tmp_path / name).mkdir(parents=True)
    tmp_path.chmod(0o755)
    closed.chmod(0o700)
    text = views.user_view(tmp_path / "site", 123, [closed / "venv", tmp_path / "open" / "checkout"], {})
    above = [path for path in (closed / "venv").parents if not path.stat().st_mode & 0o001]
    assert f"closed {above[-1]}" in inner(text)
    assert f"mkdir -p {closed / 'venv'}" in inner(text)
    assert ("open/checkout" in inner(text)) == (above[-1] != closed)
    assert "own secrets" not in inner(text)


def test_users_of_another_root_see_only_the_readable_part_of_closed_folders(tmp_path):
    closed = tmp_path / "closed"
    for name in ("venv", "root"):
        (closed / name).mkdir(parents=True)
    closed.chmod(0o700)
    above = next(path for path in reversed((closed / "venv").parents) if not path.stat().st_mode & 0o001)
    text = inner(views.root_view(tmp_path / "site", closed / "root", {}, readable=[closed / "venv"]))
    order = [f"closed {above}", f"mkdir -p {closed / 'venv'}", f"mkdir -p {closed / 'root'}", "pivot_root"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "closed" not in inner(views.root_view(tmp_path / "site", Path("/"), {}))


def test_the_user_begins_with_an_empty_environment():
    text = inner(views.user_view(Path("/site"), 123, [], {"PATH": "/srv/bin", "HOME": "/srv/home dir"}))
    assert "exec env -i PATH=/srv/bin HOME='/srv/home dir' setpriv --reuid=123 --regid=123 --clear-groups" in text


def test_a_tool_of_the_machines_own_root_is_run_by_its_name(tmp_path):
    program = tmp_path / "printf"
    program.write_text(views.tool_view(Path("/"), 123, {"A": "b c"}))
    program.chmod(0o755)
    done = subprocess.run([str(program), "%s|", "x", "y z"], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout == "x|y z|"


def test_accounts_are_those_of_the_root_and_more(tmp_path):
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "hosts"):
        (tmp_path / "etc" / name).write_text("root:x:0:\n")
    views.write_accounts(tmp_path, tmp_path, {"someone": 7}, "own-")
    assert not (tmp_path / "own-hosts").exists()
    views.write_accounts(tmp_path, tmp_path, {}, "named-", "10.0.0.1 one\n")
    assert (tmp_path / "named-hosts").read_text() == "root:x:0:\n10.0.0.1 one\n"
    assert (tmp_path / "own-passwd").read_text() == "root:x:0:\nsomeone:x:7:7::/tmp:/bin/sh\n"
    assert (tmp_path / "own-group").read_text() == "root:x:0:\nsomeone:x:7:\n"
