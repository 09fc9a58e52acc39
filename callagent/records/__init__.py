"""What is kept of calls: the record, the store, the recording, and the ways to read, send, export and delete them.

The front is light: what it names is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.records.conversion import RecordingConversion, expect_converter
    from callagent.records.export import delete_calls_of, export_records, format_call, format_calls
    from callagent.records.heartbeat import heartbeat_owners, remove_heartbeat
    from callagent.records.json_lines import JsonLines
    from callagent.records.postgres import Outbox, PostgresDatabase
    from callagent.records.query import MAX_PAGE_CALLS, CallFilter
    from callagent.records.reader import Database, Reader, SqliteDatabase, read_call, read_calls, read_records
    from callagent.records.reading_process import ReadingProcess, StoreUnavailable, hide_personal_data
    from callagent.records.recording import RECORDING_CLOSE_SECONDS, StereoRecording
    from callagent.records.redaction import Redaction
    from callagent.records.retention import delete_caller, delete_expired
    from callagent.records.spool import Spool, spool_folder, warn_of_one_disk
    from callagent.records.store import LostCall, Store, owner_of
    from callagent.records.tables import json_text, seconds_between
    from callagent.records.types import CallRecord, FunctionRecord, RequestRecord, Spoken, TurnEntry
    from callagent.records.webhooks import WebhookReceiver, Webhooks
    from callagent.records.writer import RecordWriter

_MODULES = {
    "CallFilter": "query",
    "CallRecord": "types",
    "Database": "reader",
    "FunctionRecord": "types",
    "JsonLines": "json_lines",
    "LostCall": "store",
    "MAX_PAGE_CALLS": "query",
    "Outbox": "postgres",
    "PostgresDatabase": "postgres",
    "RECORDING_CLOSE_SECONDS": "recording",
    "Reader": "reader",
    "ReadingProcess": "reading_process",
    "RecordWriter": "writer",
    "RecordingConversion": "conversion",
    "Redaction": "redaction",
    "RequestRecord": "types",
    "Spoken": "types",
    "Spool": "spool",
    "SqliteDatabase": "reader",
    "StereoRecording": "recording",
    "Store": "store",
    "StoreUnavailable": "reading_process",
    "TurnEntry": "types",
    "WebhookReceiver": "webhooks",
    "Webhooks": "webhooks",
    "delete_caller": "retention",
    "delete_calls_of": "export",
    "delete_expired": "retention",
    "expect_converter": "conversion",
    "export_records": "export",
    "format_call": "export",
    "format_calls": "export",
    "heartbeat_owners": "heartbeat",
    "hide_personal_data": "reading_process",
    "json_text": "tables",
    "owner_of": "store",
    "read_call": "reader",
    "read_calls": "reader",
    "read_records": "reader",
    "remove_heartbeat": "heartbeat",
    "seconds_between": "tables",
    "spool_folder": "spool",
    "warn_of_one_disk": "spool",
}

__all__ = [
    "MAX_PAGE_CALLS",
    "RECORDING_CLOSE_SECONDS",
    "CallFilter",
    "CallRecord",
    "Database",
    "FunctionRecord",
    "JsonLines",
    "LostCall",
    "Outbox",
    "PostgresDatabase",
    "Reader",
    "ReadingProcess",
    "RecordWriter",
    "RecordingConversion",
    "Redaction",
    "RequestRecord",
    "Spoken",
    "Spool",
    "SqliteDatabase",
    "StereoRecording",
    "Store",
    "StoreUnavailable",
    "TurnEntry",
    "WebhookReceiver",
    "Webhooks",
    "delete_caller",
    "delete_calls_of",
    "delete_expired",
    "expect_converter",
    "export_records",
    "format_call",
    "format_calls",
    "heartbeat_owners",
    "hide_personal_data",
    "json_text",
    "owner_of",
    "read_call",
    "read_calls",
    "read_records",
    "remove_heartbeat",
    "seconds_between",
    "spool_folder",
    "warn_of_one_disk",
]
__getattr__ = lazy_exports(__name__, _MODULES)
