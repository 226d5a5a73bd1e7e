"""Which processes and listening sockets of this machine are those of a pod: a part of programs that run beside a job.

It imports nothing of podbridge, and runs with any Python from 3.6 on.
"""

import glob
import os
import re
import socket
import struct

_LISTENING = "0A"


def stat(pid: "int | str") -> "tuple[int, int, str] | None":
    """Return the parent, the session and the start of a process; ``None``: there is none."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[3]), fields[19]


def link(path: str) -> str:
    """Return where a link leads; empty if this process may not know."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


class PodProcesses:
    """The processes of a pod on this machine.

    These are the processes of its containers and their descendants, the sessions that the containers lead, what runs in
    PID namespaces of their own, and with ``alone`` all of the batch job's cgroup, if Slurm has made one. A process can
    enter none of these from outside, unless a process in it helps.
    """

    def __init__(self, pids: "list[int]", alone: bool) -> None:
        self._roots = {pid: found[2] for pid in pids for found in [stat(pid)] if found}
        job = re.search(r"^[^:]*:[^:]*:([^ ]*/job_[0-9]+)(/|$)", _cgroup("self"), re.MULTILINE) if alone else None
        self._job = job.group(1) if job else ""
        self._holders = {}  # type: dict[int, tuple[int, str, str]]

    def hold(self, sockets: "set[int]") -> bool:
        """Return whether processes of the pod have all these sockets, by their inodes."""
        return self.held(sockets) == sockets

    def held(self, sockets: "set[int]") -> "set[int]":
        """Return which of these sockets processes of the pod have."""
        missing = {inode for inode in sockets if not self._still_holds(inode)}
        if missing:
            self._holders = {inode: held for inode, held in self._holders.items() if inode in sockets - missing}
            self._find(missing)
        return {inode for inode in sockets if self._still_holds(inode)}

    def _find(self, sockets: "set[int]") -> None:
        for pid in self.pids():
            found = stat(pid)
            for file in glob.iglob(f"/proc/{pid}/fd/*"):
                inode = _inode(link(file))
                if inode in sockets and found:
                    self._holders[inode] = (pid, found[2], file)

    def _still_holds(self, inode: int) -> bool:
        if inode not in self._holders:
            return False
        pid, start, file = self._holders[inode]
        found = stat(pid)
        return found is not None and found[2] == start and _inode(link(file)) == inode

    def pids(self) -> "set[int]":
        """Return the processes of the pod."""
        table = {}
        for name in os.listdir("/proc"):
            found = stat(name) if name.isdigit() else None
            if found:
                table[int(name)] = found
        roots = {pid for pid, start in self._roots.items() if pid in table and table[pid][2] == start}
        sessions = {pid for pid in roots if table[pid][1] == pid}
        found_pids = roots | {pid for pid, (_, session, _) in table.items() if session in sessions}
        below = {}  # type: dict[int, list[int]]
        for pid, (parent, _, _) in table.items():
            below.setdefault(parent, []).append(pid)
        queue = list(found_pids)
        while queue:
            children = [pid for pid in below.get(queue.pop(), ()) if pid not in found_pids]
            found_pids.update(children)
            queue += children
        spaces = {_pid_namespace(pid) for pid in found_pids} - {"", _pid_namespace("self")}
        for pid in table.keys() - found_pids:
            if _pid_namespace(pid) in spaces or self._is_of_job(pid):
                found_pids.add(pid)
        return found_pids

    def _is_of_job(self, pid: int) -> bool:
        return bool(self._job) and any(
            (line.split(":", 2)[-1] + "/").startswith(self._job + "/") for line in _cgroup(pid).splitlines()
        )


def _pid_namespace(pid: "int | str") -> str:
    return link(f"/proc/{pid}/ns/pid")


def _cgroup(pid: "int | str") -> str:
    try:
        with open(f"/proc/{pid}/cgroup", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _inode(target: str) -> int:
    return int(target[8:-1]) if target.startswith("socket:[") else 0


def acceptors(port: int, address: str) -> "set[int]":
    """Return the inodes of the sockets of this network namespace that accept connections to an address and a port."""
    loopback, anything = _in_proc("127.0.0.1"), "0" * 32
    wanted = {"0" * 8, loopback, anything, _in_proc("::ffff:127.0.0.1")}
    if ":" in address:
        wanted = {anything, _in_proc(address)}
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name) as file:
                next(file)
                for line in file:
                    words = line.split()
                    if words[3] != _LISTENING:
                        break  # the kernel lists them before all others, of which there may be thousands
                    place, _, number = words[1].partition(":")
                    if int(number, 16) == port and place in wanted:
                        inodes.add(int(words[9]))
        except (OSError, StopIteration):
            continue
    return inodes


def clients(ends: "set[tuple[str, int, str, int]]") -> "dict[tuple[str, int, str, int], int]":
    """Return the inodes of sockets of this network namespace by address and port of both ends (IPv4), the own first."""
    wanted = {f"{_in_proc(end[0])}:{end[1]:04X} {_in_proc(end[2])}:{end[3]:04X}": end for end in ends}
    found = {}
    # a client may have a socket of IPv6 for its IPv4
    for name, prefix in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        try:
            with open("/proc/net/" + name) as file:
                for line in file:
                    words = line.split()
                    own, other = words[1], words[2]
                    if prefix and own.startswith(prefix) and other.startswith(prefix):
                        own, other = own[len(prefix) :], other[len(prefix) :]
                    end = wanted.get(own + " " + other)
                    if end is not None:
                        found[end] = int(words[9])
        except OSError:
            continue
    return found


def _in_proc(address: str) -> str:
    """Return an address as ``/proc/net/tcp`` has it: words of four bytes in the order of the machine."""
    raw = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return "".join(f"{number:08X}" for number in struct.unpack(f"={len(raw) // 4}I", raw))
