"""Widgets: what an agent shows a client of the Session API that has a screen.

The model calls the widget's tool with what is to be seen. The client gets it as `SessionOutput.payload`, and the turn
is over: what the client writes next is the caller's (google.cloud.ces.v1beta, widget_tool.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.cx.format.app import CxApp, ToolConfig, tool_name

WIDGET_TOOL = "widgetTool"
TEXT = "text_response"
"""The argument that holds the words beside a widget, where the model is to find some."""
_TYPES: Mapping[str, str] = {
    "PRODUCT_CAROUSEL": "product_detail_carousel",
    "PRODUCT_COMPARISON": "product_comparison",
    "PRODUCT_DETAILS": "base_product_detail",
}
"""Widget type -> `type` of its payload on the platform, which clients go by. Other types are written in lower case."""
_WITHOUT = ("", "CUSTOM", "WIDGET_TYPE_UNSPECIFIED")


@dataclass(frozen=True, slots=True)
class Widget:
    """A widget as the engine shows it."""

    type: str
    """The payload's `type`; empty: a custom widget, whose arguments say what it is."""
    text: str
    """The fixed text that is spoken with it; empty: none."""
    asks_for_words: bool
    """Whether the model writes what is spoken with it."""
    words: str
    """The model's instruction for these words."""

    def payload(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the client's screen shows."""
        shown = {name: value for name, value in arguments.items() if not self.asks_for_words or name != TEXT}
        return {"type": self.type, **shown} if self.type else shown

    def spoken_text(self, arguments: Mapping[str, Any]) -> str:
        """Return what is spoken with the widget; empty: nothing."""
        return str(arguments.get(TEXT) or "") if self.asks_for_words else self.text

    def parameters(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema that the model fills in: the widget's own and, if need be, the words."""
        schema = {"type": "object", **own}
        if not self.asks_for_words:
            return schema
        words = {"type": "string", "description": self.words or "What is said with it."}
        return {
            **schema,
            "properties": {**(own.get("properties") or {}), TEXT: words},
            "required": [*(own.get("required") or ()), TEXT],
        }


def widgets_of(app: CxApp) -> dict[str, Widget]:
    """Return the app's widgets by the names under which the model calls them."""
    return {tool_name(tool): widget_of(tool) for tool in app.tools.values() if tool.kind == WIDGET_TOOL}


def widget_of(config: ToolConfig) -> Widget:
    """Return the widget of a tool of the kind `widgetTool`."""
    own = config.data[WIDGET_TOOL]
    kind = str(own.get("widgetType") or "")
    given = own.get("textResponseConfig")
    words = given if isinstance(given, Mapping) else {}
    return Widget(
        type="" if kind in _WITHOUT else _TYPES.get(kind, kind.lower()),
        text=str(words.get("staticText") or "") if words.get("type") == "STATIC" else "",
        asks_for_words=words.get("type") == "LLM_GENERATED",
        words=str(words.get("textResponseInstruction") or ""),
    )


def settings_without_effect(own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield key and reason of each setting of a widget that has no effect here."""
    if own.get("dataMapping"):
        yield "dataMapping", "'dataMapping' has no effect here: the model fills the widget in"
    if own.get("uiConfig"):
        yield "uiConfig", "'uiConfig' has no effect here: clients are not sent it"
