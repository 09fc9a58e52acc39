"""What is kept of calls: the record, the store, the recording."""

from __future__ import annotations

from callagent.records.export import delete_calls_of, export_records, format_call, format_calls
from callagent.records.reader import read_call, read_calls, read_records
from callagent.records.recording import StereoRecording
from callagent.records.redaction import Redaction
from callagent.records.spool import Spool, spool_folder, warn_of_one_disk
from callagent.records.store import LostCall, Store
from callagent.records.tables import between
from callagent.records.types import CallRecord, FunctionRecord, RequestRecord, Spoken, TurnEntry
from callagent.records.writer import RecordWriter

__all__ = [
    "CallRecord",
    "FunctionRecord",
    "LostCall",
    "RecordWriter",
    "Redaction",
    "RequestRecord",
    "Spoken",
    "Spool",
    "StereoRecording",
    "Store",
    "TurnEntry",
    "between",
    "delete_calls_of",
    "export_records",
    "format_call",
    "format_calls",
    "read_call",
    "read_calls",
    "read_records",
    "spool_folder",
    "warn_of_one_disk",
]
