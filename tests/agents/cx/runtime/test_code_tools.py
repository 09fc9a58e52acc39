"""What code finds among its globals when it runs: `context`, `tools`, `async_tools`, `ces_requests`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx.runtime.http import Requests, StatusError
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import results, words


class _Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def _answer(self) -> None:
        if self.path == "/slow":
            time.sleep(1.0)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        told = {"method": self.command, "path": self.path, "body": body, "kind": self.headers.get("Content-Type")}
        text = b"no json" if self.path == "/text" else json.dumps(told).encode()
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "head", "options"])
def test_every_method_asks_as_it_is_named(echo: str, method: str) -> None:
    answer = getattr(Requests(), method)(f"{echo}/a?x=1", params={"y": [1, 2]}, timeout=5)
    assert (answer.ok, answer.status_code, answer.reason) == (True, 200, "OK")
    answer.raise_for_status()
    if method != "head":
        told = answer.json()
        assert (told["method"], told["path"]) == (method.upper(), "/a?x=1&y=1&y=2")


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_bodies(echo: str, method: str) -> None:
    send = getattr(Requests(), method)
    assert json.loads(send(echo, json={"a": None}).json()["body"]) == {"a": None}
    assert send(echo, json=[]).json()["kind"] == "application/json"
    form = send(echo, {"a": "1 2", "b": ["x", "y"]}).json()
    assert (form["body"], form["kind"]) == ("a=1+2&b=x&b=y", "application/x-www-form-urlencoded")
    assert send(echo, data="raw", headers={"Content-Type": "text/plain"}).json()["body"] == "raw"


def test_what_is_not_there_is_no_json_or_too_slow(echo: str) -> None:
    gone = Requests().get(f"{echo}/gone")
    assert (gone.ok, gone.status_code, gone.reason) == (False, 404, "Not Found")
    with pytest.raises(StatusError, match="404 Not Found") as raised:
        gone.raise_for_status()
    assert (raised.value.status_code, raised.value.reason) == (404, "Not Found")
    with pytest.raises(ValueError, match="Expecting value"):
        Requests().get(f"{echo}/text").json()
    for timeout in (0.2, (0.1, 0.2)):
        with pytest.raises(TimeoutError):
            Requests().get(f"{echo}/slow", timeout=timeout)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


SLEEPS = """
    import time

    def sleeps(seconds: float) -> dict:
        time.sleep(seconds)
        context.state[f"slept_{seconds}"] = context.function_call_id
        return {"slept": seconds, "is_tool": isinstance(context, ToolContext)}
"""
BOTH = """
    def both() -> dict:
        long, short = async_tools.sleeps({"seconds": 0.3}), async_tools.sleeps({"seconds": 0.1})
        return {"short": short().json(), "long": long().json()}
"""


async def test_tools_that_run_side_by_side_have_their_context_to_their_end(tmp_path: Path) -> None:
    app = write_app(tmp_path, tools={"sleeps": SLEEPS, "both": BOTH})
    async with driven(app, call("both"), {"text": "So."}) as agent:
        actions = await agent.says("Go.")
        assert results(actions)["both"] == {
            "short": {"slept": 0.1, "is_tool": True},
            "long": {"slept": 0.3, "is_tool": True},
        }
        assert agent.state["slept_0.3"] == agent.state["slept_0.1"] != ""


CALLS = """
    def before_model_callback(callback_context, llm_request):
        answer = tools.sleeps({"seconds": 0})
        unknown = ""
        for name in ("nobody", "end_session", "transfer_to_agent", "customize_response"):
            try:
                getattr(tools, name)({})
            except Exception as error:
                unknown += f"{name} "
        state = callback_context.state
        return LlmResponse.from_parts([Part.from_text(f"{answer.ok} {answer.json()} {unknown}{state['slept_0']}")])
"""


async def test_a_tool_that_a_callback_calls_has_a_tools_context_and_the_callbacks_variables(tmp_path: Path) -> None:
    app = write_app(tmp_path, tools={"sleeps": SLEEPS}, callbacks={"before_model": CALLS})
    async with driven(app) as agent:
        (said,) = words(await agent.says("Go."))
        unknown = "nobody end_session transfer_to_agent customize_response"
        assert said == f"True {{'slept': 0, 'is_tool': True}} {unknown} None"


FAILS = """
    def fails() -> dict:
        answer = tools.breaks({})
        try:
            answer.raise_for_status()
        except StatusError as error:
            return {"ok": answer.ok, "status": error.status_code, "reason": error.reason, "told": answer.json()}
"""


async def test_a_tool_that_raises_is_a_failed_answer_for_the_code_that_called_it(tmp_path: Path) -> None:
    tools = {"breaks": "def breaks() -> dict:\n    raise KeyError('no')\n", "fails": FAILS}
    async with driven(write_app(tmp_path, tools=tools), call("fails"), {"text": "So."}) as agent:
        assert results(await agent.says("Go."))["fails"] == {
            "ok": False, "status": 500, "reason": "KeyError: 'no'", "told": {"error": "'no'"},
        }  # fmt: skip


GLOBALS = """
    WANTED = [Part, Blob, Content, Event, EventActions, FunctionCall, FunctionResponse, FunctionDeclaration,
              ToolDeclaration, GenerateContentConfig, LlmRequest, LlmResponse, CallbackContext, ToolContext, Tool,
              Tools, AsyncTools, Requests, ExternalResponse, StatusError, HttpMethod, ces_public.Part,
              ces_public.LlmResponse]

    def names(kind: Optional[List[str]] = [], more: Dict[str, Any] = {}, one: Literal["a"] = "a") -> Union[dict, Tuple]:
        return {
            "classes": len(WANTED),
            "tools": isinstance(tools, Tools),
            "async": isinstance(async_tools, AsyncTools),
            "requests": isinstance(ces_requests, Requests),
            "same": context.state is context.variables,
            "method": HttpMethod.GET.value,
            "who": [context.agent_name, context.session_id, bool(context.invocation_id), context.turn_index],
            "said": [part.text for part in context.get_last_user_input()],
            "content": context.user_content.parts[0].text,
        }
"""


async def test_every_name_of_the_platform_is_a_global(tmp_path: Path) -> None:
    async with driven(write_app(tmp_path, tools={"names": GLOBALS}), call("names"), {"text": "So."}) as agent:
        told = results(await agent.says("Go."))["names"]
        assert told["who"][1:] == ["call-1", True, 1]
        assert told | {"who": told["who"][:1]} == {
            "classes": 23, "tools": True, "async": True, "requests": True, "same": True, "method": "GET",
            "who": ["Desk"], "said": ["Go."], "content": "Go.",
        }  # fmt: skip


ASKS = """
    def asks(agent: str) -> dict:
        context.actions.state_delta["asked"] = [agent]
        context.actions.transfer_to_agent = agent
        return {}
"""


async def test_what_code_asks_for_through_its_actions_is_done(tmp_path: Path) -> None:
    other = {"agents/other/other.json": '{"displayName": "The Other", "instruction": "Be other."}'}
    app = write_app(tmp_path, tools={"asks": ASKS}, agent={"childAgents": ["other"]}, more=other)
    async with driven(app, call("asks", agent="The Other"), {"text": "Other here."}) as agent:
        assert words(await agent.says("Go.")) == ["Other here."]
        assert agent.state["asked"] == ["The Other"]
        assert agent.agent.record().step == "other"
