"""Parser and evaluator of the Common Expression Language (CEL, https://github.com/google/cel-spec) for apps.

Conditions are evaluated in the process of the calls, so depth, length and steps are bounded.
`docs/adr/0006-cel-evaluator.md` says why no library is used.

Supported are literals, lists, maps, `.` and `[]`, `! - * / % + < <= > >= == != in && || ?:`; `has()`, `size()`,
`int() uint() double() string() bool()`; of lists and maps `all exists exists_one filter map`; of texts `contains
startsWith endsWith matches lowerAscii upperAscii trim`; `timestamp() duration()`, and their parts (`getHours()` and its
like). There are no bytes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from callagent.agents.cx.cel_functions import FUNCTIONS, OPERATORS

Names = Mapping[str, object]
"""Variables by name."""
Truth = Callable[[object], bool]
"""Decides what counts as true for `!`, `&&`, `||`, `?:` and macros."""
_CONSTANTS: Names = {"true": True, "false": False, "null": None}
MAX_DEPTH = 50
"""Nested subexpressions of one condition."""
MAX_CHARACTERS = 20_000
"""Characters of one condition."""
MAX_STEPS = 2000
"""Items that macros visit in one evaluation, nested ones included."""
_CHECKED_WHEN_PARSED = ("timestamp", "duration")
_TOO_DEEP = "nested too deeply"
_MACROS = ("all", "exists", "exists_one", "filter", "map")
# Binary operators from the loosest to the tightest (langdef.md, "Syntax"); those of one level associate to the left.
_LEVELS: Sequence[tuple[str, ...]] = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
# What Python's own operators and conversions raise for operands that do not fit. They become `ValueError`, so that a
# caller of `evaluate` has one exception to catch.
_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)


def is_true(value: object) -> bool:
    return value is True


class Expression:
    """A condition, parsed once and evaluated often. The constructor raises ValueError for an invalid condition."""

    def __init__(self, text: str, truth: Truth = is_true) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"longer than {MAX_CHARACTERS} characters")
        try:
            self._evaluate = _Parser(tokenize(text), truth).parse()
        except RecursionError:
            # Where the stack is deep already, Python's own limit may be reached before `MAX_DEPTH`.
            raise ValueError(_TOO_DEEP) from None

    def evaluate(self, names: Names) -> object:
        """Return the value. Raises ValueError for unknown names, operands that do not fit, and too many steps."""
        try:
            return self._evaluate(_Scope(names, _Steps()))
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except _ERRORS as error:
            text = str(error) if isinstance(error, ValueError) else f"cannot be evaluated: {error}"
            raise ValueError(text) from None


class _Steps:
    """The number of steps that one evaluation has left."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def use(self, count: int) -> None:
        """Subtract steps. Raises ValueError if there are not enough left."""
        self._left -= count
        if self._left < 0:
            raise ValueError(f"goes through more than {MAX_STEPS} items")


@dataclass(frozen=True, slots=True)
class _Scope:
    """The context of a subexpression: its variables, and the steps that the whole evaluation has left."""

    names: Names
    steps: _Steps

    def with_name(self, name: str, value: object) -> _Scope:
        """Return the scope inside a macro, whose variable hides one of the same name outside."""
        return replace(self, names={**self.names, name: value})


Node = Callable[[_Scope], object]
"""A parsed subexpression: a function that returns its value in a scope."""


class _Parser:
    """A recursive-descent parser. Each method returns a function that evaluates what it has parsed.

    The methods follow the grammar of the specification (langdef.md, "Syntax"): `Expr`, `ConditionalOr`,
    `ConditionalAnd`, `Relation` to `Multiplication`, `Unary`, `Member`, `Primary`.
    """

    def __init__(self, tokens: Sequence[Token], truth: Truth) -> None:
        self._tokens = tokens
        self._truth = truth
        self._index = 0
        self._depth = 0

    def parse(self) -> Node:
        """Parse all tokens."""
        node = self._ternary()
        if self._index != len(self._tokens):
            raise ValueError(f"'{self._tokens[self._index].text}' is not expected")
        return node

    def _ternary(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        node, truth = self._conditional_or(), self._truth
        if self._accept("?"):
            # The else part is a ternary again, so `?:` associates to the right.
            condition, first = node, self._ternary()
            self._expect(":")
            second = self._ternary()
            node = lambda scope: first(scope) if truth(condition(scope)) else second(scope)  # noqa: E731
        self._depth -= 1
        return node

    def _conditional_or(self) -> Node:
        nodes = [self._conditional_and()]
        while self._accept("||"):
            nodes.append(self._conditional_and())
        return nodes[0] if len(nodes) == 1 else _logical(nodes, self._truth, decides=True)

    def _conditional_and(self) -> Node:
        nodes = [self._binary_level(0)]
        while self._accept("&&"):
            nodes.append(self._binary_level(0))
        return nodes[0] if len(nodes) == 1 else _logical(nodes, self._truth, decides=False)

    def _binary_level(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        node = self._binary_level(level + 1)
        while (sign := self._accept(*_LEVELS[level])) is not None:
            node = _binary(sign, node, self._binary_level(level + 1))
        return node

    def _unary(self) -> Node:
        signs = []
        # A loop, because `!!!!…` is no nesting and recursion would reach Python's limit before `MAX_DEPTH`.
        while (sign := self._accept("!", "-")) is not None:
            signs.append(sign)
        node, truth = self._member(), self._truth
        for sign in reversed(signs):
            node = _not(node, truth) if sign == "!" else _negative(node)
        return node

    def _member(self) -> Node:
        node = self._primary()
        # `a.b[c].d()` is read from left to right; each step wraps the node before it.
        while True:
            if self._accept("."):
                name = self._expect_name()
                node = self._method(name, node) if self._accept("(") else _field(node, name)
            elif self._accept("["):
                key = self._ternary()
                self._expect("]")
                node = _binary("[]", node, key)
            else:
                return node

    def _primary(self) -> Node:
        token = self._next_token()
        if token.kind == "value":
            return _Constant(token.value)
        if token.kind == "name":
            return self._identifier(token.text)
        if token.text == "(":
            node = self._ternary()
            self._expect(")")
            return node
        if token.text == "[":
            items = self._arguments("]")
            return lambda scope: [item(scope) for item in items]
        if token.text == "{":
            return self._map_literal()
        raise ValueError(f"'{token.text}' is not expected")

    def _identifier(self, name: str) -> Node:
        if name in _CONSTANTS:
            return _Constant(_CONSTANTS[name])
        # `has` takes a path and not a value, because the value of `a.b` without a `b` is an error.
        if name == "has" and self._accept("("):
            return self._has()
        if self._accept("("):
            return self._function(name, self._arguments(")"))
        return _field(lambda scope: scope.names, name)

    def _has(self) -> Node:
        """Parse `has(a.b.c)`, which is true if the path leads to a value that is not null."""
        path = [self._expect_name()]
        while self._accept("."):
            path.append(self._expect_name())
        self._expect(")")

        def has(scope: _Scope) -> bool:
            value: object = scope.names
            for name in path:
                value = value.get(name) if isinstance(value, Mapping) else None
            return value is not None

        return has

    def _method(self, name: str, owner: Node) -> Node:
        if name in _MACROS:
            variable = self._expect_name()
            self._expect(",")
            bodies = self._arguments(")")
            if len(bodies) != 1 and not (name == "map" and len(bodies) == 2):
                raise ValueError(f"{name}() takes a variable's name and an expression")
            return _macro(name, owner, variable, bodies, self._truth)
        return self._function(name, [owner, *self._arguments(")")])

    def _function(self, name: str, arguments: Sequence[Node]) -> Node:
        found = FUNCTIONS.get(name)
        if found is None:
            raise ValueError(f"there is no {name}()")
        counts, function = found
        if len(arguments) not in counts:
            raise ValueError(f"{name}() has the wrong number of arguments")
        if name in _CHECKED_WHEN_PARSED and isinstance(arguments[0], _Constant):
            # A malformed constant is found when the condition is parsed, so that `check` reports it.
            return _Constant(function(arguments[0].value))
        return lambda scope: function(*(argument(scope) for argument in arguments))

    def _map_literal(self) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            if pairs:
                self._expect(",")
            key = self._ternary()
            self._expect(":")
            pairs.append((key, self._ternary()))
        return lambda scope: {key(scope): value(scope) for key, value in pairs}

    def _arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self._accept(end):
            if found:
                self._expect(",")
            found.append(self._ternary())
        return found

    # Tokens -------------------------------------------------------------------------------------------------------

    def _accept(self, *texts: str) -> str | None:
        if self._index < len(self._tokens):
            token = self._tokens[self._index]
            if token.kind != "value" and token.text in texts:
                self._index += 1
                return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise ValueError(f"'{text}' is missing")

    def _next_token(self) -> Token:
        if self._index == len(self._tokens):
            raise ValueError("the expression ends too early")
        self._index += 1
        return self._tokens[self._index - 1]

    def _expect_name(self) -> str:
        token = self._next_token()
        if token.kind != "name":
            raise ValueError(f"'{token.text}' is not expected")
        return token.text


@dataclass(frozen=True, slots=True)
class _Constant:
    """A node whose value is known after parsing."""

    value: object

    def __call__(self, scope: _Scope) -> object:
        return self.value


def _field(owner: Node, name: str) -> Node:
    def field(scope: _Scope) -> object:
        value = owner(scope)
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"there is no '{name}'")
        return value[name]

    return field


def _logical(nodes: Sequence[Node], truth: Truth, *, decides: bool) -> Node:
    """Return `&&` or `||` of nodes. As in CEL, if any operand decides the result, errors of others are ignored.

    `decides`: the operand that decides, False for `&&` and True for `||`.
    """

    def logical(scope: _Scope) -> bool:
        first_error: Exception | None = None
        for node in nodes:
            try:
                if truth(node(scope)) is decides:
                    return decides
            except _ERRORS as error:
                # The error is kept, because a later operand may decide: `x.missing == 1 || true` is true.
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return not decides

    return logical


def _not(node: Node, truth: Truth) -> Node:
    return lambda scope: not truth(node(scope))


def _negative(node: Node) -> Node:
    negate: Callable[..., object] = operator.neg
    return lambda scope: negate(node(scope))


def _binary(sign: str, left: Node, right: Node) -> Node:
    apply = OPERATORS[sign]
    return lambda scope: apply(left(scope), right(scope))


def _macro(name: str, owner: Node, variable: str, bodies: Sequence[Node], truth: Truth) -> Node:
    """Return `owner.name(variable, body)` such as `list.all(x, x > 0)`; if the owner is a map, its keys are visited.

    The macro `map` may have two bodies: a condition and a value.
    """

    def macro(scope: _Scope) -> object:
        items = owner(scope)
        if not isinstance(items, Collection):
            raise ValueError(f"{name}() requires a list or a map")
        # The steps are counted before the first body runs, because nested macros multiply them.
        scope.steps.use(len(items))
        scopes = [scope.with_name(variable, item) for item in items]
        if name == "map":
            *conditions, body = bodies
            return [body(each) for each in scopes if all(truth(condition(each)) for condition in conditions)]
        results = [truth(bodies[0](each)) for each in scopes]
        match name:
            case "all":
                return all(results)
            case "exists":
                return any(results)
            case "exists_one":
                return sum(results) == 1
        return [item for item, result in zip(items, results, strict=True) if result]

    return macro


# The order of the alternatives matters: hexadecimal before decimal, floating point before whole numbers, raw texts
# (`r"…"`) and texts in three quotes before names and texts in one quote.
_TOKEN = re.compile(
    r"\s*(?:(?P<hex>0[xX][0-9a-fA-F]+)u?|(?P<float>\d*\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>\d+)[uU]?"
    r"|(?P<raw>[rR](?:\"[^\"]*\"|'[^']*'))|(?P<text>\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}]))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression."""

    kind: str
    """`name`, `sign` or `value`."""
    text: str
    value: object = None


def tokenize(text: str) -> list[Token]:
    """Split a text into tokens. Raises ValueError for text that is not part of an expression."""
    found: list[Token] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"'{text[place : place + 10]}' is not part of an expression")
        place = match.end()
        kind = str(match.lastgroup)
        found.append(_token(kind, match[kind]))
    return found


def _token(kind: str, text: str) -> Token:
    match kind:
        case "hex":
            return Token("value", text, int(text, 16))
        case "float":
            return Token("value", text, float(text))
        case "int":
            return Token("value", text, int(text))
        case "raw":
            return Token("value", text, text[2:-1])
        case "text":
            width = 3 if text[:3] in ('"""', "'''") else 1
            return Token("value", text, _ESCAPE.sub(_unescape, text[width:-width]))
    return Token(kind, text)


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPED.get(escaped, escaped)
