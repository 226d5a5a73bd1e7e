"""podbridge reads quantities and numbers as Kubernetes' own code does; no cluster is needed."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

import pytest

from bridge.workload import quantity
from bridge.workload.tolerations import integer
from cluster.systems import oracle

pytestmark = pytest.mark.real

SHORT, LONG = 4_000, 500_000
SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "i", "K", "mi", "e")
ALPHABET = "0123456789..+-eEinumkKMGTP001"
NAMED = (
    *("1e0003", "5e0009", "1e" + "0" * 5000 + "3", "9" * 200_000, "0." + "0" * 200_000 + "1", "1e4294967299"),
    *("", "+", "-", ".", "+.", "Ki", "m", "Ei", ".Ti", "1.", ".5", "1.Gi", "1e9223372036854775808", "-1.5n"),
)


def number(chance: random.Random) -> str:
    return chance.choice(("", "0", "00", "007", str(chance.randrange(10 ** chance.randrange(1, 40)))))


def exponent(chance: random.Random) -> str:
    far = 2**32 * chance.randrange(-2, 3) + chance.randrange(-20, 20)  # the API server keeps 32 bits
    value = chance.choice((chance.randrange(30), chance.randrange(400), far))
    return f"{chance.choice('eE')}{chance.choice(('', '+', '-'))}{'0' * chance.randrange(4)}{value}"


def a_quantity(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return "".join(chance.choice(ALPHABET) for _ in range(chance.randrange(9)))
    suffix = chance.choice(SUFFIXES) if chance.random() < 0.6 else exponent(chance)
    fraction = chance.choice(("", f".{number(chance)}"))
    return chance.choice(("", "", "+", "-")) + number(chance) + fraction + suffix


def an_integer(chance: random.Random) -> str:
    text = chance.choice(("", "+", "-")) + str(chance.randrange(10 ** chance.randrange(1, 21)))
    place = chance.randrange(len(text) + 1)
    return text[:place] + chance.choice(("", "", "_", " ", ".", "0", "\uff11", "e")) + text[place:]


def ours(read: Callable[[str], Decimal | int], text: str) -> Decimal | int | None:
    try:
        return read(text)
    except ValueError:
        return None


def bounded(value: Decimal | None) -> Decimal | None:
    """No machine has more: podbridge reads a larger value as this one."""
    return value and max(-quantity.LARGEST, min(quantity.LARGEST, value))


def test_every_quantity_has_the_value_that_the_api_server_gives_it(long: bool) -> None:
    chance = random.Random(41)
    texts = [*NAMED, *(a_quantity(chance) for _ in range(LONG if long else SHORT))]
    answers = oracle.ask({"quantity": text} for text in texts)
    wrong = [
        (text[:80], expected, found)
        for text, answer in zip(texts, answers, strict=True)
        if (found := ours(quantity.parse, text)) != (expected := bounded(oracle.number(answer)))
    ]
    assert not wrong, wrong[:10]
    assert sum("error" not in answer for answer in answers) > len(texts) // 3, "the texts exercise both ways"


def test_a_label_is_a_number_for_gt_and_lt_if_it_is_one_for_kubernetes() -> None:
    chance = random.Random(41)
    texts = ["1_000", "", "-", str(2**63), str(2**63 - 1), str(-(2**63)), "9" * 5000]
    texts += [an_integer(chance) for _ in range(SHORT)]
    answers = oracle.ask({"integer": text} for text in texts)
    wrong = [
        (text, oracle.number(answer))
        for text, answer in zip(texts, answers, strict=True)
        if ours(integer, text) != oracle.number(answer)
    ]
    assert not wrong, wrong[:10]
