"""Workers and producers of tenure over NATS: see docs/worker-protocol.md of tenure for what they say to a gateway."""

from ._batch import Item
from ._client import Client, Enqueued, Job
from ._errors import Cancel, Cancelled, Lost, Permanent, ProtocolError, Retry, Snooze, Suspended, TenureError
from ._log import LogHandler
from ._run import Context, NewJob, SyncContext
from ._worker import Worker

__all__ = [
    "Cancel",
    "Cancelled",
    "Client",
    "Context",
    "Enqueued",
    "Item",
    "Job",
    "LogHandler",
    "Lost",
    "NewJob",
    "Permanent",
    "ProtocolError",
    "Retry",
    "Snooze",
    "Suspended",
    "SyncContext",
    "TenureError",
    "Worker",
]
