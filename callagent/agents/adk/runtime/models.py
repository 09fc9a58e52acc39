"""Stand-ins for `google.adk.models`: objects that name a model in a project's Python.

Only the name counts. Which of our models it is, the settings say (`models`); nothing is asked through these objects.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class BaseLlm(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    model: str


class LiteLlm(BaseLlm):
    """Its names are `provider/model`."""


class Gemini(BaseLlm):
    model: str = ""


class Claude(BaseLlm):
    model: str = ""
