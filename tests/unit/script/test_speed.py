"""Scripts per second of one core."""

import time

from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from tests.unit.script.pods import KINDS, OBJECTS, SITE


def test_five_hundred_a_second():
    config = BuildConfig.model_validate(SITE)
    for pod in KINDS.values():
        build(pod, config, OBJECTS, "n")
    before, made = time.process_time(), 0
    while time.process_time() - before < 0.5:
        for pod in KINDS.values():
            build(pod, config, OBJECTS, "n")
            made += 1
    assert made / (time.process_time() - before) > 500
