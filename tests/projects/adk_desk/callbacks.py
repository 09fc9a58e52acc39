from google.adk.models.llm_response import LlmResponse
from google.genai import types


def count_visit(callback_context):
    callback_context.state["visits"] = callback_context.state.get("visits", 0) + 1
    callback_context.state["temp:now"] = "noon"
    callback_context.state["user:caller_name"] = "Ada"


async def say_nothing(callback_context):
    return None


def remind_of_closing(callback_context):
    if callback_context.state.get("last_answer") == "See you.":
        return types.ModelContent(parts=[types.Part(text="We close at six.")])


def refuse_insults(callback_context, llm_request):
    said = llm_request.contents[-1].parts[-1].text or ""
    if "idiot" in said:
        return LlmResponse(content=types.ModelContent([types.Part(text="Please be kind.")]))


def add_opening_hours(callback_context, llm_request):
    llm_request.append_instructions(["Open from nine to six."])
    if callback_context.state["temp:now"] == "noon":
        llm_request.config.temperature = 0.5


def tidy(callback_context, llm_response):
    part = llm_response.content.parts[0]
    if part.text and "damn" in part.text:
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=part.text.replace("damn ", ""))]))


def answer_from_memory(tool, args, tool_context):
    if tool.name == "order_part" and args.get("part") == "bell":
        return {}
    if "number" in args:
        args["number"] = int(args["number"])


def note_tool(tool, args, tool_context, tool_response):
    tools = tool_context.state.get("tools", [])
    tools.append(tool.name)
    tool_context.state["tools"] = tools
    if tool_response == {}:
        return {"answer": "bells are always there"}


def closed_on_sundays(callback_context):
    if callback_context.state.get("sunday"):
        return types.Content(role="model", parts=[types.Part(text="Sales are closed.")])
