"""FunctionGemma in its own format: prompt, calls, grammar, and the engines that run it.

One line starts each engine:

    llama-server -m functiongemma-270m-it.gguf --special          functiongemma/llamacpp
    ollama run functiongemma                                      functiongemma/ollama
    vllm serve google/functiongemma-270m-it                       functiongemma/vllm
    pip install llama-cpp-python                                  functiongemma/gguf:FILE
    pip install transformers torch                                functiongemma/transformers:DIRECTORY
"""

from __future__ import annotations

from callagent.models.functiongemma.declarations import render_declaration
from callagent.models.functiongemma.docstring import declaration_from_function
from callagent.models.functiongemma.engine import CompletionEngine, CompletionRequest, Piece
from callagent.models.functiongemma.expression import ExpressionError, FunctionCall, parse_expression
from callagent.models.functiongemma.gbnf import grammar
from callagent.models.functiongemma.model import FunctionGemmaModel
from callagent.models.functiongemma.opening import EngineSettings, open_functiongemma
from callagent.models.functiongemma.output import Delta, ParsedOutput, Problem, StreamParser, parse_output
from callagent.models.functiongemma.prompt import render_prompt
from callagent.models.functiongemma.schema import coerce_arguments
from callagent.models.functiongemma.tokens import FUNCTIONGEMMA, GEMMA4, TokenSet, neutralise
from callagent.models.functiongemma.training import TrainingRow, split_rows, training_row
from callagent.models.functiongemma.values import format_value

__all__ = [
    "FUNCTIONGEMMA",
    "GEMMA4",
    "CompletionEngine",
    "CompletionRequest",
    "Delta",
    "EngineSettings",
    "ExpressionError",
    "FunctionCall",
    "FunctionGemmaModel",
    "ParsedOutput",
    "Piece",
    "Problem",
    "StreamParser",
    "TokenSet",
    "TrainingRow",
    "coerce_arguments",
    "declaration_from_function",
    "format_value",
    "grammar",
    "neutralise",
    "open_functiongemma",
    "parse_expression",
    "parse_output",
    "render_declaration",
    "render_prompt",
    "split_rows",
    "training_row",
]
