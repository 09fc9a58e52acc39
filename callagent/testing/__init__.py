"""Agents tried without a telephone: conversations as text, test suites, simulated callers, calls without processes."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.testing.suite import (
        AppSuiteSetup,
        SuiteSetup,
        TestResult,
        read_caller_file,
        run_app_suite,
        run_suite,
    )
    from callagent.testing.text_chat import ChatOptions, TextCall, open_text_call, run_chat

_MODULES = {
    "AppSuiteSetup": "suite",
    "ChatOptions": "text_chat",
    "SuiteSetup": "suite",
    "TestResult": "suite",
    "TextCall": "text_chat",
    "open_text_call": "text_chat",
    "read_caller_file": "suite",
    "run_app_suite": "suite",
    "run_chat": "text_chat",
    "run_suite": "suite",
}

__all__ = [
    "AppSuiteSetup",
    "ChatOptions",
    "SuiteSetup",
    "TestResult",
    "TextCall",
    "open_text_call",
    "read_caller_file",
    "run_app_suite",
    "run_chat",
    "run_suite",
]
__getattr__ = lazy_exports(__name__, _MODULES)
