"""What the start of a pod does not cost, where many start at once on a machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bridge.script import library

RUN = "mkdir logs control state state/.new\nNAME=(main)\n"


def run(folder: Path, text: str, **variables: str) -> str:
    (folder / "script").write_text(f"{library.text('none')}\n{RUN}{text}")
    words = ["bash", "--norc", "--noprofile", "script"]
    variables |= {"PATH": "/usr/bin:/bin"}
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("variables", "least"), [({}, 100), ({"PODBRIDGE_BEGIN_TIME": "356"}, 356)])
def test_no_state_is_written_while_the_containers_of_a_group_begin(
    tmp_path: Path, variables: dict[str, str], least: int
) -> None:
    text = 'active; echo $((FLUSH_AT - NOW)) "${PODBRIDGE_BEGIN_TIME-none}"; ls state/.new'
    assert run(tmp_path, text, **variables) == f"{least} none\n"


def test_the_length_of_a_log_that_the_container_does_not_write_costs_no_program(tmp_path: Path) -> None:
    text = """\
stat() { echo stat >>ran; command stat "$@"; }
set_up_containers; new_log 0; collect 0
until collected "${COLLECTOR[0]}"; [[ $RESULT == 0 ]]; do :; done
index_log 0; [[ -e ran ]] || echo none
echo text >&"$OUTPUT"; exec {OUTPUT}>&-
while kill -0 "${COLLECTOR[0]}"; do :; done 2>/dev/null
index_log 0; cat ran; echo "${LOG_SIZE[0]}"
"""
    assert run(tmp_path, text) == "none\nstat\n5\n"


@pytest.mark.parametrize(("locale", "first"), [("", "unset -v LC_ALL"), ("C.UTF-8", "export LC_ALL=C.UTF-8")])
def test_the_locale_of_the_site_is_set_in_the_last_step_of_a_start(tmp_path: Path, locale: str, first: str) -> None:
    """Until then, each program would read the files of the locale."""
    text = f"""\
hold_texts() {{ EXPORTED=$1; }}
exec() {{ (($# == 0)) || {{ printenv LC_ALL; printf '%s' "$EXPORTED"; exit; }}; }}
command_of() {{ COMMAND=(true); }}
variables_of() {{ VARIABLES=(LC_ALL own); }}
LOCALE={locale} RUN_AS=(:) KIND=(main) NAMESPACE=root MAPS_USER='' SESSION=(setsid)
into 0 start 2>/dev/null
"""
    assert run(tmp_path, text) == f"C\n{first}\nexport LC_ALL='own'\n"


@pytest.mark.parametrize("name", ["plain", "a b\\c", "a\tb"])
def test_the_flags_of_a_mount_that_is_made_read_only_cost_no_program(tmp_path: Path, name: str) -> None:
    escaped = name.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    text = r"""
mount() { printf '%s|' "$@"; }
findmnt() { echo findmnt >>ran; echo rw,other; }
mapfile() { rows=("${TABLE[@]}"); }
row() { TABLE+=("$1 1 0:5 $2 $3 $4 shared:1 - ext4 $5 rw"); }
row 20 / / rw,relatime /dev/vda
row 21 / "$ESCAPED" rw,nosuid /dev/vda
row 22 / "$ESCAPED" rw,nodev,noexec /dev/vda
row 23 "$ESCAPED" /other rw,sync "$ESCAPED"
mkdir "$VOLUME"
NEW='' ACCESS=(ro) FROM=("$VOLUME") PLACE=("$VOLUME")
attach 0; [[ -e ran ]] || echo none
TABLE=()
attach 0; cat ran
"""
    volume = f"{tmp_path}/{name}"
    told = run(tmp_path, text, VOLUME=volume, ESCAPED=f"{tmp_path}/{escaped}")
    found = f"-o|remount,bind,ro,nodev,noexec,|{volume}|none\n"
    assert told == found + f"-o|remount,bind,ro,other,|{volume}|findmnt\n"
