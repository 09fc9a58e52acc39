"""The transaction layer (RFC 3261 §17)."""

from callagent.sip.transaction.layer import ClientTransaction, OnResponse, ServerTransaction, TransactionLayer
from callagent.sip.transaction.timers import Timer, Timers, TimerSettings

__all__ = [
    "ClientTransaction",
    "OnResponse",
    "ServerTransaction",
    "Timer",
    "TimerSettings",
    "Timers",
    "TransactionLayer",
]
