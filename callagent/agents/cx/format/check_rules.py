"""What `check` may find in an app: an identifier for each, which stays the same, and one line that explains it.

Identifiers in brackets are those of the platform's published linter (cxas-scrapi), where it looks for the same.
"""

from __future__ import annotations

from enum import Enum


class CheckRule(str, Enum):  # noqa: UP042 - a member has a meaning beside its value
    _value_: str
    meaning: str

    def __new__(cls, number: str, meaning: str) -> CheckRule:
        member = str.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    UNREADABLE = "CX001", "A file is missing, or is not valid JSON, YAML or UTF-8."
    SHAPE = "CX002", "A field has another type than the format gives it."
    NO_SUCH_FILE = "CX003", "A field names a file that the app does not have."
    NO_SUCH_OBJECT = "CX004", "A field names an agent, tool, toolset or guardrail that the app does not have."
    TWO_PARENTS = "CX005", "An agent is the child of two agents."
    TOOL_KIND = "CX006", "A tool is of no kind, or of several."
    VARIABLE = "CX007", "A variable has no name, or a type that the format does not know."
    PATTERN = "CX008", "A guardrail's pattern is no regular expression."
    OPEN_SERVER = "CX009", "An OpenAPI schema leaves its server open, and environment.json has none for it."
    LIMIT = "CX010", "There is more of something than the platform takes."
    NO_EFFECT = "CX011", "A setting has no effect here."
    NOT_HERE = "CX012", "An agent, tool, toolset or guardrail of this kind does not work here."
    CLIENT_FUNCTION = (
        "CX013",
        "A client function or a widget is for clients of the Session API; on the telephone there is none.",
    )
    AUTHENTICATION = "CX014", "Requests go without this kind of authentication."
    DEPLOYMENT = "CX015", "A version or deployment cannot be served as it is written."
    RECORDING_PATH = "CX016", "The app's recordings go to a local folder: their bucket is not written to."
    AWAY = "CX017", "A server of tools is away: calls that open once it is back have its tools."
    MODEL_SAFETY = "CX018", "`modelSafety` is enforced by Gemini's own models only."
    NOT_PYTHON = "CX020", "A file is not valid Python (C010, T010)."
    IMPORT = "CX021", "Python imports what an app may not."
    NO_CALLBACK = "CX022", "A callback's file has no function of the callback's name (C001)."
    CALLBACK_ARGUMENTS = "CX023", "A callback takes arguments that it is not called with (C002)."
    KEYWORDS = "CX024", "A tool takes **kwargs (T009)."
    DEFAULT = "CX025", "A tool's argument has the default None, or one of another type than its hint (T011)."
    FAILS = "CX026", "A file's Python fails when it is run, as it is before the first call."
    ENDLESS = "CX027", "A file's Python does not end, or ends its process, when it is run."
    CAMEL_CASE = "CX028", "A function of a callback is named in camelCase; the platform wants snake_case (C003)."
    RETURNS_DICT = "CX029", "A model callback returns a dictionary in the place of an LlmResponse (C004)."
    BARE_EXCEPT = "CX030", "A bare `except:` hides every failure (C006)."
    CALLED_TOOL = "CX031", "Code calls a tool that the app does not have (C007)."
    TYPING = "CX032", "A name of `typing` is not imported: it is there here, not on the platform (C008)."
    ANNOTATION = "CX033", "A callback's argument is hinted as another class than it is given (C009)."
    BARE_PART = "CX034", "A part is made by `Part(text=…)`; the platform's way is `Part.from_text(…)`."
    NO_RETURN = "CX035", "A tool returns nothing: the model is told nothing."
    NO_DOCSTRING = (
        "CX036",
        "A tool has neither docstring nor description: the model does not know what it is for (T002).",
    )
    NO_HINT = "CX037", "A tool's argument has no type hint (T003)."
    CONDITION = "CX040", "A condition of an instruction or a transfer rule cannot be worked out."
    OTHER_TAG = "CX041", "A `{% … %}` that is no condition: the model sees it as it is."
    TASKFLOW = "CX042", "A <taskflow> has neither <subtask> nor <step> (I002)."
    NEGATIVE_TRIGGER = "CX043", "A <trigger> says what must not be the case, which models misread (I004)."
    LONG_INSTRUCTION = "CX044", "An instruction is so long that callers wait for it (I007)."
    NO_SUCH_AGENT = "CX045", "An instruction names an agent that the app does not have (I008)."
    TOOL_NOT_GIVEN = "CX046", "An instruction names a tool that the agent does not have (I009, I013)."
    REFERENCE_SYNTAX = (
        "CX047",
        "An instruction writes a reference in another way than {@AGENT: …}, {@TOOL: …} (I010, I011).",
    )
    TOOL_NOT_NAMED = "CX048", "An agent has a tool that its instruction, which names others, does not name (I012)."
    RECORDING = "CX050", "A recording that code plays is not in the app."
