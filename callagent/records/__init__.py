"""Records and recordings of calls: writing, reading, sending, exporting and deleting them.

Importing this package is light: each of its modules is imported when one of its names is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.records.call_record import CallRecord, FunctionRecord, RequestRecord, Spoken, TurnEntry
    from callagent.records.export import export_records, format_call, format_calls
    from callagent.records.notifications import JsonLines, WebhookReceiver, Webhooks
    from callagent.records.postgres import PostgresDatabase, RowCopier
    from callagent.records.privacy import Redaction, hide_personal_data
    from callagent.records.query import MAX_PAGE_CALLS, CallFilter
    from callagent.records.reader import (
        Database,
        Reader,
        ReadingProcess,
        SqliteDatabase,
        StoreUnavailable,
        read_call,
        read_calls,
        read_records,
    )
    from callagent.records.recording import (
        RECORDING_CLOSE_SECONDS,
        RecordingConversion,
        StereoRecording,
        require_converter,
    )
    from callagent.records.retention import delete_caller, delete_calls_of, delete_expired
    from callagent.records.spool import Spool, spool_folder, warn_of_shared_disk
    from callagent.records.store import LostCall, Store, heartbeat_owners, owner_of, remove_heartbeat
    from callagent.records.tables import json_text, seconds_between
    from callagent.records.writer import RecordWriter

_MODULES = {
    "CallFilter": "query",
    "CallRecord": "call_record",
    "Database": "reader",
    "FunctionRecord": "call_record",
    "JsonLines": "notifications",
    "LostCall": "store",
    "MAX_PAGE_CALLS": "query",
    "RowCopier": "postgres",
    "PostgresDatabase": "postgres",
    "RECORDING_CLOSE_SECONDS": "recording",
    "Reader": "reader",
    "ReadingProcess": "reader",
    "RecordWriter": "writer",
    "RecordingConversion": "recording",
    "Redaction": "privacy",
    "RequestRecord": "call_record",
    "Spoken": "call_record",
    "Spool": "spool",
    "SqliteDatabase": "reader",
    "StereoRecording": "recording",
    "Store": "store",
    "StoreUnavailable": "reader",
    "TurnEntry": "call_record",
    "WebhookReceiver": "notifications",
    "Webhooks": "notifications",
    "delete_caller": "retention",
    "delete_calls_of": "retention",
    "delete_expired": "retention",
    "require_converter": "recording",
    "export_records": "export",
    "format_call": "export",
    "format_calls": "export",
    "heartbeat_owners": "store",
    "hide_personal_data": "privacy",
    "json_text": "tables",
    "owner_of": "store",
    "read_call": "reader",
    "read_calls": "reader",
    "read_records": "reader",
    "remove_heartbeat": "store",
    "seconds_between": "tables",
    "spool_folder": "spool",
    "warn_of_shared_disk": "spool",
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
    "PostgresDatabase",
    "Reader",
    "ReadingProcess",
    "RecordWriter",
    "RecordingConversion",
    "Redaction",
    "RequestRecord",
    "RowCopier",
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
    "require_converter",
    "seconds_between",
    "spool_folder",
    "warn_of_shared_disk",
]
__getattr__ = lazy_exports(__name__, _MODULES)
