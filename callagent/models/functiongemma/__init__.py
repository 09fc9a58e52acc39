"""FunctionGemma in its own format: prompt, calls, grammar, and the engines that run it.

One line starts each engine:

    llama-server -m functiongemma-270m-it.gguf --special          functiongemma/llamacpp
    ollama run functiongemma                                      functiongemma/ollama
    vllm serve google/functiongemma-270m-it                       functiongemma/vllm
    pip install llama-cpp-python                                  functiongemma/gguf:FILE
    pip install transformers torch                                functiongemma/transformers:DIRECTORY
"""

from callagent.models.functiongemma.engines import CompletionEngine, CompletionRequest, Piece
from callagent.models.functiongemma.format import FUNCTIONGEMMA, GEMMA4, TokenSet, format_value, grammar, neutralise
from callagent.models.functiongemma.model import EngineSettings, FunctionGemmaModel, open_functiongemma
from callagent.models.functiongemma.parsing import (
    Delta,
    ExpressionError,
    FunctionCall,
    ParsedOutput,
    Problem,
    StreamParser,
    parse_expression,
    parse_output,
)
from callagent.models.functiongemma.prompt import (
    TrainingRow,
    declaration_from_function,
    render_declaration,
    render_prompt,
    split_rows,
    training_row,
)
from callagent.models.functiongemma.schema import coerce_arguments

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
