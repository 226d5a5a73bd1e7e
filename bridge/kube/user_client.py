"""Clients that send the token of a user to the API server, and no credentials of this process."""

from __future__ import annotations

from typing import Any

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.kube.kube_access import KubeAccess, configuration
from bridge.kube.kube_client import KubeClient


class UserClients:
    """Creates clients of the API server of a kubeconfig or of the pod's service account. Raises ``ConfigError``."""

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        user_agent: str = "podbridge",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        load = lambda: without_credentials(configuration(kubeconfig, context))  # noqa: E731
        self._access = KubeAccess(load, pool_size=16, clock=clock)
        self._agent = user_agent

    def client(self, token: str) -> KubeClient:
        """Return a client whose requests have the rights of the token; it shares connections with the others."""
        return KubeClient(TokenAccess(self._access, token), user_agent=self._agent, read_timeout=10.0)


class TokenAccess(KubeAccess):
    """The connections of another access, with a token."""

    def __init__(self, access: KubeAccess, token: str) -> None:
        self.server, self.pool, self.client, self.prefix = access.server, access.pool, access.client, access.prefix
        self._token = token

    def authorization(self) -> str:
        """Return the ``Authorization`` header of the user."""
        return f"Bearer {self._token}"

    def renew(self, refused: str | None) -> bool:
        """Do not send a refused token again."""
        return False


def without_credentials(loaded: Any) -> Any:
    """Remove all credentials from the library's ``Configuration``.

    A client certificate counts before a token (kube-apiserver's union of authenticators), so a request with both would
    have the rights of this process.
    """
    loaded.cert_file = loaded.key_file = None
    loaded.username = loaded.password = None
    loaded.api_key, loaded.api_key_prefix = {}, {}
    loaded.refresh_api_key_hook = None
    return loaded
