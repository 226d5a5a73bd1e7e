"""The program of pods that find each other at a site, as with ``torchrun``: all connect to the first by its name."""

PROGRAM = """
import socket, sys, time
address, port, rank, size = sys.argv[1], *map(int, sys.argv[2:])
socket.getaddrinfo(address, port)
ranks = []
if rank == 0 and size > 1:
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    ranks = sorted(int(peer.recv(9)) for peer in peers)
    for peer in peers:
        peer.sendall(str(ranks).encode())
elif rank:
    while True:
        try:
            peer = socket.create_connection((address, port), 5)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    peer.sendall(str(rank).encode())
    ranks = peer.recv(99).decode()
print(f"{rank} of {size} met {ranks} at {address}", flush=True)
"""


def container(address, port, rank, size, then="true", name="main", first="true"):
    """Return the container of a member; ``first`` and ``then`` are commands, the numbers words of a shell."""
    command = f'{first}; python3 -c "$PROGRAM" {address} {port} {rank} {size} && {then}'
    requests = {"cpu": "1", "memory": "32Mi"}
    return {
        "name": name,
        "image": "busybox",
        "command": ["sh", "-c", command],
        "env": [{"name": "PROGRAM", "value": PROGRAM}],
        "resources": {"requests": requests},
    }


def lines(address, size):
    """Return what each member writes, by rank."""
    return [f"{rank} of {size} met {list(range(1, size))} at {address}" for rank in range(size)]
