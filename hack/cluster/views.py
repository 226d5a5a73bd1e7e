"""Views of the file system: shell scripts that run a program in a mount namespace.

A *root view* is a root folder of another Debian suite (or the machine's own root) in which a folder of the cluster
is at ``/srv``. A *user view* is the machine's own root for an ordinary user of a site: the site's folder
at ``/srv``, and folders that are closed to others (``/root``) with only the files that the user has to read. The tools
of another suite run in a chroot of it, as it has the mounts of a root view: a namespace for each call would take 14
programs and 30 ms of CPU time, and submitters call a tool each second.

``pivot_root`` elsewhere: a process in a chroot can create no user namespace, and rootless containers need one.
Nothing has to be unmounted: the kernel removes a view when its last process ends.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

SEEN_AS = "/srv"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SHARED = ("/root", "/home", "/tmp", "/proc", "/sys", "/dev")
"""proc, sys and dev for the programs; the others as on a real cluster, where login and compute nodes share them.

``/root`` first: it may contain the root folder itself, whose mounts would otherwise be mounted twice.
"""
ETC = ("passwd", "group", "hosts")
"""Files of the site that replace those of the root, if the site has them."""
MACHINE = "machine-"
"""Prefix of the site's files for the machine's own root."""


def write_accounts(root: Path, folder: Path, users: Mapping[str, int], prefix: str = "", hosts: str = "") -> None:
    """Write ``passwd`` and ``group`` of ``root`` into ``folder``, with more users (name -> uid).

    With ``hosts``, lines of ``/etc/hosts``, also ``hosts``.
    """
    if hosts:
        folder.joinpath(f"{prefix}hosts").write_text(root.joinpath("etc", "hosts").read_text() + hosts)
    for name, line in (("passwd", "{0}:x:{1}:{1}::/tmp:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
        known = root.joinpath("etc", name).read_text()
        folder.joinpath(f"{prefix}{name}").write_text(known + "".join(line.format(*user) for user in users.items()))


def root_view(
    folder: Path,
    root: Path,
    variables: dict[str, str],
    run: bool = True,
    first: str = "",
    readable: Sequence[Path] = (),
) -> str:
    """Write the script with which root runs a program that sees ``folder`` at ``/srv`` of ``root``.

    ``folder`` holds ``etc/passwd``, ``etc/group`` and, with ``run``, the content of ``/run``. ``first`` is a
    command that runs before, in which ``$R`` is the root and ``$1`` the program. With ``readable``, all users see these
    folders, and nothing else in closed folders (``/root``) above them.
    """
    lines = []
    if readable:
        lines = [f"mount --bind {_q(folder)} {SEEN_AS}", *_opened([*readable, root])]
    lines += _mounts(root, SEEN_AS if readable else str(folder), run)
    if root != Path("/"):
        lines += [first] if first else []
        lines.append('at=$PWD; cd "$R"; /usr/sbin/pivot_root . .; umount -l .; cd "$at" 2>/dev/null || cd /tmp')
    lines.append(_exports(variables))
    lines.append('exec "$@"')
    return _script("Runs a program where it sees this folder at /srv.", lines)


def tool_view(root: Path, uid: int, variables: dict[str, str]) -> str:
    """Write the script with which an ordinary user, in a user view, runs the tool of ``root`` with the script's name.

    A user namespace replaces root's right to change the root; the user has its own uid there.
    """
    lines = ["#!/bin/sh", "# Runs the tool that it is named after.", _exports(variables)]
    change = ""
    if root != Path("/"):
        lines.append(f'R={_q(root)}; [ -d "$R$PWD" ] || cd /tmp')
        change = f'unshare --user --map-user={uid} --map-group={uid} --root="$R" --wd="$PWD" '
    lines.append(f'exec {change}"${{0##*/}}" "$@"')
    return "\n".join(lines) + "\n"


def user_view(folder: Path, uid: int, needed: Sequence[Path], variables: dict[str, str], root: Path = Path("/")) -> str:
    """Write the script with which root runs a program as user ``uid``; this user may read the folders ``needed``.

    ``root`` is that of the site's tools.
    """
    lines = [f"mount --bind {_q(folder)} {SEEN_AS}"]
    lines.append(_mount_etc(f"{SEEN_AS}/etc/{MACHINE}", "/etc/"))
    lines += _opened(needed)
    if root != Path("/"):
        lines += _mounts(root, SEEN_AS, run=True)
    words = " ".join(f"{key}={_q(value)}" for key, value in variables.items())
    lines.append(f"cd {SEEN_AS}")
    lines.append(f'exec env -i {words} setpriv --reuid={uid} --regid={uid} --clear-groups "$@"')
    return _script("Runs a program as the user of this site.", lines)


def _opened(needed: Sequence[Path]) -> list[str]:
    """Return the commands after which closed folders contain the folders ``needed`` and nothing else, for all users."""
    kept = {path: closed for path in dict.fromkeys(needed) if (closed := _closed(path))}
    if not kept:
        return []
    lines = [f"mount -t tmpfs -o mode=755 kept {SEEN_AS}/mnt"]
    for number, path in enumerate(kept):
        lines.append(f"mkdir {SEEN_AS}/mnt/{number}; mount --rbind {_q(path)} {SEEN_AS}/mnt/{number}")
    lines += [f"mount -t tmpfs -o mode=755 closed {_q(closed)}" for closed in dict.fromkeys(kept.values())]
    for number, path in enumerate(kept):
        lines.append(f"mkdir -p {_q(path)}; mount --move {SEEN_AS}/mnt/{number} {_q(path)}")
    lines.append(f"umount {SEEN_AS}/mnt")
    return lines


def _mounts(root: Path, folder: str, run: bool) -> list[str]:
    """Return the commands that mount everything below ``root``."""
    if root == Path("/"):
        return [f"mount --rbind {_q(folder)} {SEEN_AS}", _mount_etc(f"{SEEN_AS}/etc/", "/etc/")]
    lines = [f"R={_q(root)}", 'mount --rbind "$R" "$R"']
    lines += [f'mount --rbind {path} "$R{path}"' for path in SHARED]
    lines.append(f'mount --rbind {_q(folder)} "$R{SEEN_AS}"')
    lines.append(_mount_etc(f"$R{SEEN_AS}/etc/", "$R/etc/"))
    if run:
        lines.append(f'mount --bind "$R{SEEN_AS}/run" "$R/run"')
    return lines


def _mount_etc(own: str, etc: str) -> str:
    mount = f'[ ! -e "{own}$file" ] || mount --bind "{own}$file" "{etc}$file"'
    return f"for file in {' '.join(ETC)}; do {mount}; done"


def _exports(variables: dict[str, str]) -> str:
    # PATH: the machine's tools, not the wrappers with the same names
    return "export " + " ".join(
        f"{key}={_q(value)}" for key, value in {"PATH": PATH, "LC_ALL": "C", **variables}.items()
    )


def _script(what: str, lines: Sequence[str]) -> str:
    inner = _q("\n".join(lines))
    return f'#!/bin/sh\n# {what}\nexec unshare --mount sh -ec {inner} sh "$@"\n'


def _closed(path: Path) -> Path | None:
    """Return the topmost folder above ``path`` that is closed to other users."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def _q(text: Path | str) -> str:
    return shlex.quote(str(text))
