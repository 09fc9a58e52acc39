"""The reader of an exported app, which checks its references and reports all errors at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from callagent.agents.cx.format import app as app_format
from callagent.agents.cx.format import document_reader
from callagent.agents.cx.format.files import read_files
from callagent.agents.kernel import Findings, Pattern
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at, objects_at

TOOL_KINDS = (
    "pythonFunction", "clientFunction", "openApiTool", "googleSearchTool", "connectorTool", "dataStoreTool",
    "fileSearchTool", "mcpTool", "agentTool", "widgetTool", "remoteAgentTool", "systemTool",
)  # fmt: skip
SYSTEM_TOOLS = ("end_session", "customize_response", "transfer_to_agent")
_TYPE_DEFAULTS: JsonObject = {"STRING": "", "BOOLEAN": False, "INTEGER": 0, "NUMBER": 0.0, "OBJECT": {}, "ARRAY": []}


_APP_OBJECTS = (
    ("audioProcessingConfig", "bargeInConfig"),
    ("defaultChannelProfile",),
    ("errorHandlingSettings", "endSessionConfig"),
    ("errorHandlingSettings", "fallbackResponseConfig", "customFallbackMessages"),
    ("languageSettings",),
)
"""Settings of the main file that must be objects. Other values are reported, because the engine would ignore them."""


class AppReader(document_reader.DocumentReader):
    """The reader of one version of an app."""

    _environment = document_reader.Environment({})

    def read(self, name: str) -> app_format.CxApp | None:
        """Return the app; report errors and return None if it has no readable main file or no root agent."""
        app_file = self.files.app_file
        data = self.document(app_file)
        if data is None:
            return None
        # The environment is read before the objects, because it completes them, too.
        if document_reader.ENVIRONMENT_FILE in self.files.contents:
            self._environment = document_reader.Environment(self.document(document_reader.ENVIRONMENT_FILE) or {})
        data = self._environment.app(data)
        for path in _APP_OBJECTS:
            self.object_at(app_file, data, *path)
        agents = {each.name: each for each in map(self._read_agent, self.folders("agents")) if each}
        tools = {each.name: each for each in map(self._read_tool, self.folders("tools")) if each}
        toolsets = {each.name: each for each in map(self._read_toolset, self.folders("toolsets")) if each}
        guardrails = {each.name: each for each in map(self._read_guardrail, self.folders("guardrails")) if each}
        app = app_format.CxApp(
            files=self.files,
            name=str(data.get("displayName") or data.get("name") or name),
            data=data,
            # `_check_app` fills it in: the name is resolved with the app's own agents.
            root_agent="",
            global_instruction=self.text_at(app_file, data, "globalInstruction"),
            agents=agents,
            tools=tools,
            toolsets=toolsets,
            guardrails=guardrails,
            variables=self._read_variables(app_file, data),
        )
        return self._check_app(app, app_file)

    def _check_app(self, app: app_format.CxApp, app_file: str) -> app_format.CxApp | None:
        """Check the references and return the app with its root agent and examples."""
        root = app.agent_named(str(app.data.get("rootAgent") or ""))
        if root is None:
            named = app.data.get("rootAgent")
            self.error(
                document_reader.CheckRule.NO_SUCH_OBJECT,
                app_file,
                "rootAgent",
                f"'rootAgent' is {named!r}; there is no such agent in agents/",
            )
            return None
        for guardrail in self.names(app_file, app.data, "guardrails"):
            if app.guardrail_named(guardrail) is None:
                self.error(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    app_file,
                    guardrail,
                    f"'guardrails' names '{guardrail}', which is not in guardrails/",
                )
        for agent in app.agents.values():
            self._check_references(app, agent)
        self._check_tree(app, root)
        app = replace(app, root_agent=root)
        return replace(app, examples=self._read_examples(app))

    def _read_examples(self, app: app_format.CxApp) -> dict[str, str]:
        """Return the texts of example conversations by the agent that answers first in them."""
        texts_by_agent: dict[str, list[str]] = {}
        for name, file in self.folders("examples"):
            data = self.document(file)
            if data is None or data.get("invalid"):
                continue
            # Only the agent that answers sees the example, because other agents would learn tasks that are not theirs.
            entry = str(data.get("entryAgent") or app.root_agent)
            agent = app.agent_named(entry)
            if agent is None:
                self.warning(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    file,
                    "entryAgent",
                    f"'entryAgent' is '{entry}', which is not in agents/",
                )
            elif text := example_text(app, data):
                texts_by_agent.setdefault(agent, []).append(f"{data.get('displayName') or name}:\n{text}")
        return {agent: join_examples(texts) for agent, texts in texts_by_agent.items()}

    def _check_references(self, app: app_format.CxApp, agent: app_format.AgentConfig) -> None:
        for tool in agent.tools:
            known = tool.rsplit("/", 1)[-1] in SYSTEM_TOOLS or app.tool_named(tool) is not None
            if not known:
                self.error(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    agent.file,
                    tool,
                    f"'tools' names '{tool}', which is not in tools/",
                )
        for child in agent.children:
            if app.agent_named(child) is None:
                self.error(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    agent.file,
                    child,
                    f"'childAgents' names '{child}', which is not in agents/",
                )
        for toolset, _ in agent.toolsets:
            if app.toolset_named(toolset) is None:
                self.error(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    agent.file,
                    toolset,
                    f"'toolsets' names '{toolset}', which is not in toolsets/",
                )
        for guardrail in agent.guardrails:
            if app.guardrail_named(guardrail) is None:
                self.error(
                    document_reader.CheckRule.NO_SUCH_OBJECT,
                    agent.file,
                    guardrail,
                    f"'guardrails' names '{guardrail}', which is not in guardrails/",
                )

    def _check_tree(self, app: app_format.CxApp, root: str) -> None:
        """Report agents that are the child of two agents."""
        # The search starts at the root: unreachable agents are not part of the tree, and cycles are reported here.
        parents: dict[str, str] = {root: ""}
        pending = [root]
        while pending:
            agent = app.agents[pending.pop()]
            for child in (found for each in agent.children if (found := app.agent_named(each))):
                if child in parents:
                    message = f"'childAgents' names '{child}', which already has a parent: an agent has only one"
                    self.error(document_reader.CheckRule.TWO_PARENTS, agent.file, child, message)
                    continue
                parents[child] = agent.name
                pending.append(child)

    # Objects ------------------------------------------------------------------------------------------------------

    def _read_agent(self, found: tuple[str, str]) -> app_format.AgentConfig | None:
        name, file = found
        data = self.document(file)
        if data is None:
            return None
        callbacks: dict[str, Sequence[app_format.Code]] = {}
        for point, key in app_format.CALLBACK_POINTS.items():
            listed = [each for each in self.objects(file, data, key) if not each.get("disabled")]
            callbacks[point] = [code for each in listed if (code := self.code(file, each.get("pythonCode")))]
        # Rules have no names, so the key is the index; `engine/transfer_rules.py` counts in the same way.
        conditions = {}
        for index, rule in enumerate(self.objects(file, data, "transferRules")):
            condition = self.object_at(file, rule, "deterministicTransfer", "pythonCodeCondition")
            if condition and (code := self.code(file, condition.get("pythonCode"))):
                conditions[index] = code
        return app_format.AgentConfig(
            name=name,
            display_name=str(data.get("displayName") or name),
            data=data,
            instruction=self.text_at(file, data, "instruction"),
            file=file,
            callbacks=callbacks,
            tools=self.names(file, data, "tools"),
            toolsets=[
                (str(each.get("toolset") or "").rsplit("/", 1)[-1], self.names(file, each, "toolIds") or None)
                for each in self.objects(file, data, "toolsets")
            ],
            children=self.names(file, data, "childAgents"),
            guardrails=self.names(file, data, "guardrails"),
            conditions=conditions,
        )

    def _read_tool(self, found: tuple[str, str]) -> app_format.ToolConfig | None:
        name, file = found
        data = self.document(file)
        if data is None:
            return None
        data = self._environment.object("tools", name, data)
        kinds = [key for key in TOOL_KINDS if isinstance(data.get(key), Mapping)]
        if len(kinds) != 1:
            self.error(
                document_reader.CheckRule.TOOL_KIND,
                file,
                kinds[-1] if kinds else name,
                f"a tool has exactly one of {', '.join(TOOL_KINDS)}",
            )
        kind = kinds[0] if kinds else ""
        own = object_at(data, kind)
        code = self.code(file, own.get("pythonCode")) if kind == "pythonFunction" else None
        # A fake is enabled by default; sessions and tests decide whether fakes are used at all.
        fake = self.object_at(file, data, "toolFakeConfig")
        block = self.object_at(file, fake, "codeBlock").get("pythonCode") if fake.get("enableFakeMode", True) else None
        return app_format.ToolConfig(
            name=name,
            display_name=str(data.get("displayName") or name),
            data=data,
            file=file,
            kind=kind,
            code=code,
            function=str(own.get("name") or ""),
            description=str(own.get("description") or data.get("description") or ""),
            fake=self.code(file, block) if block else None,
            schema=self._read_schema(file, own) if kind == "openApiTool" else None,
        )

    def _read_toolset(self, found: tuple[str, str]) -> app_format.ToolsetConfig | None:
        name, file = found
        data = self.document(file)
        if data is None:
            return None
        data = self._environment.object("toolsets", name, data)
        own = data.get("openApiToolset") or data.get("openApiTool")
        schema = self._read_schema(file, own) if isinstance(own, Mapping) else None
        return app_format.ToolsetConfig(name, str(data.get("displayName") or name), data, file, schema)

    def _read_schema(self, file: str, own: JsonObject) -> JsonObject | None:
        """Return the OpenAPI description in `own` or in the file that it names; None if there is none."""
        # JSON is YAML, so one parser reads both. A description has more than one line; the name of a file has one.
        named = str(own.get("openApiSchema") or own.get("schema") or "")
        text = self.files.text(named) if "\n" not in named else named
        if text is None:
            self.error(
                document_reader.CheckRule.NO_SUCH_FILE,
                file,
                named,
                f"'openApiSchema' names '{named}', which does not exist",
            )
            return None
        try:
            data = document_reader.parse_yaml(document_reader.with_server(text, own))
        except ValueError as error:
            self.error_at(
                document_reader.CheckRule.UNREADABLE, named or file, getattr(error, "line", 1), f"not valid: {error}"
            )
            return None
        # This is a warning, because the rest of the app works; the model gets an error when it calls the tool.
        if document_reader.ENVIRONMENT_PLACEHOLDER in text and not own.get("url"):
            left_open = f"the server is left open ({document_reader.ENVIRONMENT_PLACEHOLDER})"
            message = f"{left_open}: {document_reader.ENVIRONMENT_FILE} has no 'url' for it"
            self.warning_at(document_reader.CheckRule.OPEN_SERVER, named or file, 1, message)
        return data if isinstance(data, Mapping) else None

    def _read_guardrail(self, found: tuple[str, str]) -> app_format.GuardrailConfig | None:
        name, file = found
        data = self.document(file)
        if data is None:
            return None
        callbacks: dict[str, app_format.Code] = {}
        own = self.object_at(file, data, "codeCallback")
        for pattern, reason in _invalid_patterns(self.object_at(file, data, "contentFilter")):
            self.error(
                document_reader.CheckRule.PATTERN, file, pattern, f"'{pattern}' is not a regular expression: {reason}"
            )
        for point, key in app_format.CALLBACK_POINTS.items():
            # A guardrail has one callback at a point, under the singular of the key that an agent has.
            callback = own.get(key.removesuffix("s"))
            if isinstance(callback, Mapping) and not callback.get("disabled"):
                code = self.code(file, callback.get("pythonCode"))
                callbacks |= {point: code} if code else {}
        return app_format.GuardrailConfig(name, data, file, callbacks)

    def _read_variables(self, file: str, data: JsonObject) -> MutableJsonObject:
        defaults: MutableJsonObject = {}
        for each in self.objects(file, data, "variableDeclarations"):
            name, schema = each.get("name"), self.object_at(file, each, "schema")
            if not isinstance(name, str) or not name:
                self.error(
                    document_reader.CheckRule.VARIABLE, file, "variableDeclarations", "a variable needs a 'name'"
                )
                continue
            kind = str(schema.get("type") or "STRING").upper()
            if kind not in _TYPE_DEFAULTS:
                self.error(
                    document_reader.CheckRule.VARIABLE,
                    file,
                    name,
                    f"variable '{name}': type '{kind}' is not one of {', '.join(_TYPE_DEFAULTS)}",
                )
                continue
            # A default of `null` is different from no default.
            defaults[name] = schema["default"] if "default" in schema else _TYPE_DEFAULTS[kind]
        return defaults


def load_app(path: Path, findings: Findings) -> app_format.CxApp | None:
    """Read the app in a folder or zip; errors go to `findings`. Raises `ProjectError` if it cannot be read at all."""
    files = read_files(path)
    return AppReader(files, findings).read(path.stem)


def read_cx_app(path: Path) -> app_format.CxApp:
    """Read the app in a folder or zip. Raises `ProjectError` that lists all errors in its files."""
    findings = Findings()
    app = load_app(path, findings)
    errors = findings.report().errors
    if app is None or errors:
        listed = "\n".join(f"  {error}" for error in errors)
        raise ProjectError(f"The app in {path} cannot be loaded:\n{listed}")
    return app


def _invalid_patterns(content_filter: JsonObject) -> list[tuple[str, str]]:
    """Return the invalid regular expressions of a guardrail, with the reasons."""
    if content_filter.get("matchType") != "REGEXP_MATCH":
        return []
    keys = ("bannedContents", "bannedContentsInUserInput", "bannedContentsInAgentResponse")
    bad = []
    for each in (str(each) for key in keys for each in list_at(content_filter, key)):
        try:
            Pattern(each, ignore_case=True)
        except ValueError as error:
            bad.append((each, str(error)))
    return bad


def join_examples(conversations: Sequence[str]) -> str:
    """Return example conversations as a part of the instruction."""
    listed = "\n\n".join(f"Example {number}, {text}" for number, text in enumerate(conversations, 1))
    # Without the second sentence, models take the examples for words of this caller.
    return f"These conversations show how callers are answered. They are examples, not what was said now.\n\n{listed}"


def example_text(app: app_format.CxApp, data: JsonObject) -> str:
    """Return the conversation of an example's file, a line for each utterance, call and answer."""
    lines = []
    for message in objects_at(data, "messages"):
        author = "Caller" if str(message.get("role") or "user").lower() == "user" else "Agent"
        lines += [line for chunk in objects_at(message, "chunks") for line in _lines(app, author, chunk)]
    return "\n".join(lines)


def _lines(app: app_format.CxApp, author: str, chunk: JsonObject) -> Iterator[str]:
    if text := chunk.get("text") or chunk.get("transcript"):
        yield f"{author}: {text}"
    if call := object_at(chunk, "toolCall"):
        yield f"{author} calls {app_format.referenced_tool_name(app, call)}({_json(call.get('args') or {})})"
    if answer := object_at(chunk, "toolResponse"):
        yield f"{app_format.referenced_tool_name(app, answer)} answers {_json(answer.get('response') or {})}"
    if transfer := object_at(chunk, "agentTransfer"):
        named = str(transfer.get("targetAgent") or transfer.get("displayName") or "")
        yield f"{author} gives the conversation to {app.agent_named(named) or named.rsplit('/', 1)[-1]}"
    if payload := chunk.get("payload"):
        yield f"{author} shows {_json(payload)}"
    for key in ("defaultVariables", "updatedVariables"):
        for name, value in object_at(chunk, key).items():
            yield f"The variable {name} is {_json(value)}"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
