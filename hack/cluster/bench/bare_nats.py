"""Bare NATS round trips by nats-py on the connections of the hub and of a site: the limit of the machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import nats

SUBJECT = "bridge.v1.{pool}.status.bench.{job}"
SHORT = 400
"""Bytes of an answer to a submission, about."""


async def _connect(url: str, seed: str, authority: str, inbox: str) -> Any:
    tls = ssl.create_default_context(cafile=authority)
    more: dict[str, Any] = {"tls": tls, "nkeys_seed": seed, "inbox_prefix": inbox.encode()}
    return await nats.connect(url, **more)


async def _echo(url: str, seed: str, authority: str, pool: str, size: int) -> None:
    link = await _connect(url, seed, authority, f"_INBOX.{pool}")
    payload = b"x" * size

    async def answer(message: Any) -> None:
        await message.respond(payload)

    await link.subscribe(SUBJECT.format(pool=pool, job="*"), queue=pool, cb=answer)
    await asyncio.Event().wait()


async def _ask(url: str, seed: str, authority: str, pool: str, size: int, count: int, at_once: int) -> float:
    link = await _connect(url, seed, authority, "_INBOX.hub")
    payload = b"x" * size
    subject = SUBJECT.format(pool=pool, job="bare")

    async def some(number: int) -> None:
        for _ in range(number, count, at_once):
            await link.request(subject, payload, timeout=30)

    await link.request(subject, payload, timeout=10)
    began = time.monotonic()
    await asyncio.gather(*(some(number) for number in range(at_once)))
    seconds = time.monotonic() - began
    await link.close()
    return count / seconds


def round_trips(url: str, seed: Path, authority: Path, pool: str, size: int, count: int, at_once: int) -> float:
    """Send requests with payloads of ``size`` bytes; return round trips per second."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it logs how the library closes TLS
    return asyncio.run(_ask(url, str(seed), str(authority), pool, size, count, at_once))


def main() -> int:
    """Answer each request, at the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--url", "--seed", "--authority", "--pool"):
        parser.add_argument(name, required=True)
    parser.add_argument("--answer", type=int, default=SHORT, help="bytes of an answer")
    options = parser.parse_args()
    asyncio.run(_echo(options.url, options.seed, options.authority, options.pool, options.answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
