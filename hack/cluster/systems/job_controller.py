"""A controller that makes other objects of one kind of job, as a process without webhooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cluster.ports import http_status
from cluster.systems.gang_manifests import CRDS


@dataclass(frozen=True)
class JobController(ABC):
    """The controller in one cluster: its folder, first port and program."""

    folder: Path
    first_port: int
    binary: Path
    manifests: Path
    """Folder with the CRDs."""
    kubeconfig: Path

    user: ClassVar[str]
    """User name at the API server, and name of the folder."""

    @abstractmethod
    def write(self) -> None:
        """Write what the controller reads."""

    @abstractmethod
    def daemons(self) -> dict[str, list[str]]:
        """Return its command line."""

    def answers(self, name: str) -> bool:
        """Return whether the controller runs, with its certificates if it needs any."""
        return http_status(f"http://{self.health}/readyz") == 200

    @property
    def crds(self) -> Path:
        """Manifest of the CRDs."""
        return self.manifests / CRDS

    def webhook_objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return no webhook configuration."""
        return []

    @property
    def health(self) -> str:
        """Address of its health."""
        return f"127.0.0.1:{self.first_port}"
