"""Lets a pod reach Services of the cluster: a program that runs in its job, and passes connections on to the hub.

The script of a pod with the annotation ``bridge.vk.io/reach`` contains this file, after the modules that it imports,
and runs it with any Python from 3.6 on. ``keep`` listens on addresses of the loopback from before the first container
starts until the script ends. ``attach`` connects its own input and output with it: the stream of the hub, which the
submitter starts. The hub resolves and checks the target of each connection; see :mod:`controllers.reach`.

A machine has processes of other users and other pods. So the keeper accepts a connection only from a socket that a
process of the pod has. Without a hub, connections wait for :data:`PATIENCE`.
"""

import contextlib
import os
import selectors
import socket
import sys
import threading
import time

from bridge.relay.multiplexer import HEAD, OPEN, Multiplexer, RelayedSocket, close_with_reset
from bridge.relay.pod_processes import PodProcesses, clients, stat

DOOR = "run/reach.socket"
PERIOD = 0.5
FIRST = 0.1
"""Seconds until the process of a new connection is looked for again: a container has just started."""
UNKNOWN = 3.0
"""Seconds after which a connection is reset whose process is not known to be one of the pod."""
START = 10.0
"""Seconds for which a hub waits for the keeper."""
PATIENCE = 30.0
"""Seconds for which connections wait for a hub, and in which it must take what is sent."""
MOST = 128
"""Open connections of one pod; more wait."""


class Newcomer:
    """A connection whose process is not known yet."""

    def __init__(self, sock: socket.socket, target: bytes) -> None:
        self.sock, self.target = sock, target
        self.ends = sock.getpeername() + sock.getsockname()
        self.until = time.monotonic() + UNKNOWN


class Keeper(Multiplexer):
    """The listeners of one pod, and their connections.

    ``script``: the process that runs the job's script. ``places``: address, port and target of each listener.
    """

    def __init__(self, script: int, alone: bool, places: "list[tuple[str, int, bytes]]") -> None:
        super().__init__()
        self._alone, self._script = alone, script
        self._listeners = {}  # type: dict[socket.socket, bytes]
        for address, port, target in places:
            self._listeners[_listen(address, port)] = target
        self._newcomers = []  # type: list[Newcomer]
        self._processes = PodProcesses([], alone)
        self._roots = set()  # type: set[int]
        self._numbers = 0
        self._hub = None  # type: socket.socket | None
        self._alone_since = time.monotonic()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(DOOR)
        self._door.listen(4)
        self.selector.register(self._door, selectors.EVENT_READ, self._attached)
        self._accepts = False

    def run(self) -> None:
        """Serve until the script has ended."""
        while os.getppid() == self._script:
            self._accept_more(self._hub is not None or time.monotonic() - self._alone_since > PATIENCE)
            for key, events in self.selector.select(FIRST if self._newcomers else PERIOD):
                if isinstance(key.data, RelayedSocket):
                    if key.data.number in self.connections:
                        self.serve(key.data, events)
                else:
                    key.data(key.fileobj)
            if self._newcomers:
                self._admit()

    # --- the hub ------------------------------------------------------------------------------------------------------
    def tell(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame to the hub."""
        if self._hub is not None:
            try:
                self._hub.sendall(HEAD.pack(kind, number, len(payload)) + payload)
            except OSError:  # also: it takes nothing
                self._detach()

    def _attached(self, door: socket.socket) -> None:
        """Accept a hub; the one before is gone, or not the leader any more."""
        new = door.accept()[0]
        self._detach()
        new.settimeout(PATIENCE)
        self._hub, self._received = new, b""
        self.selector.register(new, selectors.EVENT_READ, self._hear)

    def _hear(self, hub: socket.socket) -> None:
        if hub is not self._hub:
            return
        try:
            data = hub.recv(2**16)
        except OSError:
            data = b""
        if not data:
            self._detach()
        else:
            self.take(data)

    def _detach(self) -> None:
        """End the stream and its connections; what the kernel has not shown yet waits for the next hub."""
        if self._hub is None:
            return
        self.selector.unregister(self._hub)
        self._hub.close()
        self._hub, self._alone_since = None, time.monotonic()
        for connection in list(self.connections.values()):
            self.forget(connection)

    # --- the pod ------------------------------------------------------------------------------------------------------
    def _accept_more(self, wanted: bool) -> None:
        """Accept connections, or leave them to the kernel."""
        wanted = wanted and len(self.connections) + len(self._newcomers) < MOST
        if wanted != self._accepts:
            for listener in self._listeners:
                if wanted:
                    self.selector.register(listener, selectors.EVENT_READ, self._accept)
                else:
                    self.selector.unregister(listener)
            self._accepts = wanted

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client may be gone already
            sock = listener.accept()[0]
            if self._hub is None:
                close_with_reset(sock)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._newcomers.append(Newcomer(sock, self._listeners[listener]))

    def _admit(self) -> None:
        """Open the connections of processes of the pod, and reset others after a while."""
        roots = container_pids()
        if roots != self._roots:
            self._roots, self._processes = roots, PodProcesses(list(roots), self._alone)
        inodes = clients({each.ends for each in self._newcomers})
        held = self._processes.held({inode for inode in inodes.values() if inode})
        newcomers, self._newcomers = self._newcomers, []
        for each in newcomers:
            if self._hub is not None and inodes.get(each.ends) in held:
                self._numbers += 1
                self.opened(RelayedSocket(self._numbers, each.sock))
                self.tell(OPEN, self._numbers, each.target)
            elif self._hub is not None and time.monotonic() < each.until:
                self._newcomers.append(each)
            else:
                close_with_reset(each.sock)


def _listen(address: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(MOST)
    except OSError as error:
        hint = "; allowed: NAME:LOCAL:PORT with another local port" + " from 1024 on" * (port < 1024)
        sys.exit(f"port {port} of this machine can't be used: {error.strerror}{hint}")
    return listener


def container_pids() -> "set[int]":
    """Return the processes of the containers: what ``run/<name>.pid`` and, of podman, ``run/<name>.inner`` say."""
    found = set()
    for name in os.listdir("run"):
        if name.endswith((".pid", ".inner")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open("run/" + name) as file:
                    pid, start = file.read().split()[:2]
                process = stat(pid)
                if process and process[2] == start:
                    found.add(int(pid))
    return found


def attach() -> None:
    """Connect the own input and output with the keeper, until one of them ends."""
    until = time.monotonic() + START
    while not os.path.exists(DOOR) and time.monotonic() < until:  # the script has just started
        time.sleep(FIRST)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(DOOR)

    def pass_input() -> None:
        with contextlib.suppress(OSError):
            while True:
                data = os.read(0, 2**16)
                if not data:
                    break
                sock.sendall(data)
        os._exit(0)  # the other thread waits for the keeper

    threading.Thread(target=pass_input, name="reach-input", daemon=True).start()
    while True:
        data = sock.recv(2**16)
        if not data:
            return
        while data:
            data = data[os.write(1, data) :]


def main(words: "list[str]") -> None:
    """Run ``keep SCRIPT ALONE ADDRESS PORT TARGET...`` or ``attach``; an empty word means no."""
    if words[0] == "keep":
        texts = zip(words[3::3], words[4::3], words[5::3])  # noqa: B905  (not before Python 3.10)
        places = [(address, int(port), target.encode()) for address, port, target in texts]
        keeper = Keeper(int(words[1]), bool(words[2]), places)
        os.write(1, b"ready\n")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        keeper.run()
        return
    try:
        attach()
    except OSError as error:
        sys.exit("the program of bridge.vk.io/reach does not run beside the pod: " + str(error.strerror))


if __name__ == "__main__":
    main(sys.argv[1:])
