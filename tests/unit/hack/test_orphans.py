"""Clusters of killed test runs."""

import os
import subprocess

import pytest

from cluster import Cluster, orphans
from cluster.options import Options, Record


def test_clusters_of_an_ended_process_are_stopped_and_no_others(tmp_path):
    with subprocess.Popen(["sleep", "321"]) as owner:
        folders = [orphans.make_folder(tmp_path), orphans.make_folder(tmp_path, owner.pid)]
        pids = []
        for folder in folders:
            (folder / "plain").mkdir()
            Record(Options(), 20000, complete=True).write(folder / "plain")
            pids.append(Cluster(folder / "plain").processes.start("kube-apiserver", ["sleep", "321"]))
        (tmp_path / "podbridge-other").mkdir()
        assert orphans.stop(tmp_path) == []
        owner.kill()
    assert orphans.stop(tmp_path) == [folders[1]]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[1], 0)
    assert sorted(tmp_path.iterdir()) == sorted([folders[0], tmp_path / "podbridge-other"])
    assert Cluster(folders[0] / "plain").pid("kube-apiserver") == pids[0]
    Cluster(folders[0] / "plain").stop()
