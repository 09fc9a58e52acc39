"""The commands that a carrier takes about a call outside of its media stream."""

from __future__ import annotations

from typing import Protocol

from callagent.errors import CallagentError
from callagent.legs import TransferTarget


class ControlFailed(CallagentError):
    """The carrier did not do what it was asked, or could not be asked."""


class CallEnded(ControlFailed):
    """The call is over already."""


class TargetNotCalled(ControlFailed):
    """The carrier has taken the caller off our stream, but did not call the target of the transfer."""


class CallControl(Protocol):
    """The commands about one call. Every method is bounded in time; its leg calls them one after the other.

    A carrier reports how a transfer goes to its webhooks, which tell the leg by `CarrierLeg.end_transfer`.
    """

    async def hang_up(self) -> None:
        """End the call; one that is over already is no error. Raises `ControlFailed`."""

    async def transfer(self, target: TransferTarget) -> None:
        """Begin to give the caller to `target`; return when the carrier has accepted the command.

        Raises `ValueError` for a target that this carrier cannot call, `CallEnded` when the caller is gone,
        `TargetNotCalled` when the caller waits in vain, and `ControlFailed` when nothing has changed.
        """

    async def take_back(self) -> None:
        """Bring the caller of a transfer that failed back to a media stream. Raises `ControlFailed`.

        It does nothing where the carrier asks a webhook what to do next: the answer to that brings the caller back.
        """
