"""The child side of a flow project: imports its Python, holds a call's `conv`, runs one function at a time.

Runs in a worker as `ProjectRuntime("callagent.agents.flows.runtime:FlowRuntime", project)`. What crosses the process
border is plain data:

`WorkerPool.lease(context)` — all keys optional::

    {"account_id", "project_id",            # strings of project.yaml
     "secrets": {name: str | dict},         # what conv.utils.get_secret returns; the declared environment comes next
                                            # and then what the core answers to a message "secret"
     "api": {integration: {"base_url", "auth_type", "operations": {name: {"method", "resource"}}}},
     "api_mocks": {integration: {operation: [{"status", "body", "headers", "repeat"}]}},
     "mcp": {provider: {"url", "auth": {}, "timeout", "enabled": None | [name]}},
     "memory": {…}, "line_memory": {…},     # of the caller's earlier calls
     "now": ISO 8601 | None, # pinned conv.clock
     "timezone": IANA name | None}

`{"op": "describe"}` → `{"functions": [...]}`, one entry per function file::

    {"kind": "global"|"flow"|"step"|"start"|"end", "flow": folder name | None, "name", "file", "line",
     "parameters": [{"name", "type": "string"|"integer"|"number"|"boolean"|None, "description"}],
     "description": str,
     "latency": None | {"delay_before_start", "silence_after_each", "responses": [[text, seconds]], "randomize": bool},
     "error": None | {"type", "message", "file", "line"}}          # why the module cannot be imported

`{"op": "describe_remote"}` asks the MCP servers → `{"functions": [{"provider", "name", "description", "parameters"}],
"failures": [{"provider", "error"}]}`; such a function is run with the kind "remote" and its provider as "flow".

`{"op": "set_state", "values": {key: value}}` → `{"state", "state_changes", "checkpoint"}`; with no values it reads.

`{"op": "run", "function": {"kind", "flow", "name"}, "arguments": {…}, "conv": {…}}`. `flow` is the display name or the
folder. `conv` is a snapshot; a key that is absent keeps its value of the run before::

    {"id", "env", "channel_type", "caller_number", "callee_number", "sip_headers": {}, "end_headers": {},
     "integration_attributes", "current_flow", "current_step", "language",
     "voice": {"provider", "provider_voice_id"} | None,
     "variant_name", "variants": {name: {attribute: value}},
     "history": [{"role": "user"|"agent", "text"}],
     "entities": {name: {"value", "valid", "type", …} | str},
     "generic_external_events": [{"ext_event_id", "send_to_llm", "created_at", "data", "content_type"}],
     "transcript_alternatives": [str], "metric_events": [{"name", "value"}], "real_time_config": {},
     "handoffs": {name: {"is_default", "method", "phone_number", "sip_headers": {}, "description"}},
     "sms_templates": {name: {"content", "phone_number"}},
     "translations": {key: {language: text}}, "attempt": 1}          # attempt: of the end function

→ answer::

    {"returned": JSON, "returned_kind": "str"|"dict"|"none"|"other",
     "error": None | {"type", "message", "traceback"},
     "effects": {"say": str|None, "goto_flow": str|None, "goto_step": str|None, "exit_flow": bool,
                 "goto_csat_flow": bool,
                 "handoff": None | {"destination", "reason", "utterance", "sip_headers": {}, "route"},
                 "variant": str|None, "language": str|None,
                 "voice": None | {"provider", "provider_voice_id", "config": {}},
                 "asr_biasing": None | {"keywords": [], "custom_biases": {}},   # both empty: cleared
                 "background_track": None | {"name", "loudness"},
                 "disabled_topics": None | [name],                  # the whole list, when it changed
                 "metrics": [{"name", "value"}],                    # already sent as messages
                 "sms": [{"kind": "text"|"template"|"content", "to_number", …}],
                 "emails": [{"to", "subject", "body"}],
                 "discard_recording": bool},
     "logs": [entry], "state": {key: JSON}, "state_changes": {"added": {}, "updated": {}, "removed": []},
     "duration_ms": float, "checkpoint": {key: bytes | None}}

`destination` of a handoff is a name of the project: `conv.call_handoff` has resolved case and `default`.
The effects hold although `error` is set: what the function did before it failed stands. The engine keeps state,
metrics, logs, messages and topics of a failed function and follows none of its transitions: the model is told of it.

Messages while a function runs (`OnMessage`); `"ask": True` waits for the awaitable's result::

    {"type": "metric", "name", "value", "write_once": bool, "ask": True}    → anything; the metric is durable
    {"type": "prompt_llm", "prompt", "show_history", "return_json", "model", "ask": True} → text (or a dict)
    {"type": "external_event", "send_to_llm": bool, "ask": True}            → its identifier
    {"type": "secret", "name", "ask": True}                                 → text | None: there is none
    {"type": "log", "level", "content", "is_pii", "timestamp", "logger", …fields}
    {"type": "output", "text"}     # a line of standard output or error; sent by the worker itself

A `CallagentError` raised by the awaitable is raised in the function (`prompt_llm`: as `ChatCompletionError`).
"""

from callagent.agents.flows.runtime.session import FlowRuntime

__all__ = ["FlowRuntime"]
