"""Fields of pods that anybody may have written."""

import pytest

from bridge import names
from bridge.workload import pods


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", 7),
        ("67108863", 67108863),
        ("67108864", None),  # of a federation, in which podbridge keeps no job
        ("4294967295", None),
        ("9999999999", None),
        ("0", None),
        ("-7", None),
        ("\u0667", None),
        ("", None),
    ],
)
def test_a_job_id_is_one_that_slurm_can_assign(text, found):
    for metadata in ({"labels": {names.JOB_ID_LABEL: text}}, {"annotations": {names.JOB_ID_ANNOTATION: text}}):
        assert pods.job_id({"metadata": metadata, "spec": {}}) == found
