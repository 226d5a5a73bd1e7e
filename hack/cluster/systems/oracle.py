"""Kubernetes' own answers about texts that podbridge reads too; ``hack/tools/oracle`` is built from its libraries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from cluster.systems import install

Answer = dict[str, Any]


def ask(questions: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """Return the answer to each question; ``hack/tools/oracle/main.go`` lists both."""
    install.ensure(modules=[install.ORACLE])
    program = install.binaries(install.ORACLE.packages)["oracle"]
    text = "\n".join(map(json.dumps, questions))
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def number(answer: Answer) -> Decimal | None:
    """Return the number in an answer; ``None`` if Kubernetes refuses the text."""
    if "error" in answer:
        return None
    digits = answer["digits"]
    return Decimal((digits.startswith("-"), tuple(map(int, digits.lstrip("-"))), -answer["scale"]))
