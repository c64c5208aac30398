"""Read the status of servers with the action `status`. `foldflight.server.ops.status` documents its JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import pyarrow.flight as fl

from foldflight.client.connect import check_token, tls_files
from foldflight.client.edge import translated
from foldflight.client.urls import server_url

__all__ = ["StatusReader"]

_ACTION = "status"


class StatusReader:
    """Reads the status from one URL, repeatedly, over one connection.

    Args:
        url: A server or a load balancer: `grpc://host:port` or `grpc+tls://host:port`.
        deadline_s: Longest wait for an answer.
        token: As for `connect`, like the following arguments.

    Raises:
        RejectedError: SIGNATURE for another kind of URL, or a token that cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float,
        token: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = server_url(url)
        check_token(token)
        self._deadline_s = deadline_s
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._client = fl.FlightClient(
            self.url, **tls_files((self.url,), tls_root_certs=tls_ca, cert_chain=tls_cert, private_key=tls_key)
        )

    def read(self) -> dict[str, Any]:
        """Return the status of the fleet.

        Raises:
            RetryableError: UNREACHABLE or DEADLINE.
            RejectedError: UNAUTHENTICATED; BAD_FRAME if the server does not have this action.
        """
        try:
            options = fl.FlightCallOptions(timeout=self._deadline_s, headers=self._headers)
            answers = list(self._client.do_action(fl.Action(_ACTION, b""), options))
            status: dict[str, Any] = json.loads(answers[0].body.to_pybytes())
        except Exception as error:
            known = translated(error, url=self.url, deadline_s=self._deadline_s)
            if known is error:
                raise
            raise known from None
        return status

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
