"""Transfers of the conversation between agents: who may receive it, and how the model is told."""

from __future__ import annotations

from collections.abc import Sequence

from callagent.agents.tree.events import RunFailed
from callagent.agents.tree.nodes import LlmNode, Node, Tool, ToolKind

TRANSFER = "transfer_to_agent"
# The sentences below are part of the ADK format, word for word: agent trees were tuned with them.
_DESCRIPTION = """\
Transfer the query to another agent.

Use this tool to hand off control to another agent that is more suitable to
answer the user's query according to the agent's description.

Args:
  agent_name: the agent name to transfer to."""
_INSTRUCTION = """
You have a list of other agents to transfer to:

{agents}

If you are the best to answer the question according to your description,
you can answer it.

If another agent is better for answering the question according to its
description, call `transfer_to_agent` function to transfer the question to that
agent. When transferring, do not generate any text other than the function
call.

**NOTE**: the only available agents for `transfer_to_agent` function are
{names}.
"""
_TO_PARENT = """
If neither you nor the other agents are best for the question, transfer to your parent agent {parent}.
"""


def transfer_targets(node: LlmNode) -> list[Node]:
    """Return the agents that an agent may transfer to: its children, its parent, its parent's other children."""
    targets = list(node.children)
    parent = node.parent
    if not isinstance(parent, LlmNode):
        return targets
    if node.can_transfer_to_parent:
        targets.append(parent)
    if node.can_transfer_to_peers:
        targets += [peer for peer in parent.children if peer is not node]
    return targets


def transfer_target(node: LlmNode, name: str, *, nested: bool) -> Node:
    """Return the agent of this name. Raises `RunFailed`, with the ADK's own text, when the transfer is not allowed."""
    # The ADK's runner and its nested agents raise different errors, and a nested agent may even transfer to itself.
    found = next((each for each in transfer_targets(node) if each.name == name), None)
    if found is None and nested and name == node.name:
        return node
    if found is None:
        raise RunFailed(*_refusal(node, name, nested), recorded=True)
    return found


def _refusal(node: LlmNode, name: str, nested: bool) -> tuple[str, str]:
    # Word for word the ADK's own errors, as recorded conversations have them.
    known = [each.name for each in node.root.walk()]
    if nested and name in known:
        return "ValueError", f"Agent {node.name} is not allowed to transfer to agent {name}."
    if nested:
        return "ValueError", f"Agent {name} not found in the agent tree."
    if name == node.name:
        return "WorkflowDataError", f"Agent '{name}' cannot transfer to itself."
    if name not in known:
        return "ValueError", f"Transfer target agent '{name}' not found."
    start = f"Cannot transfer from '{node.name}' to"
    parent = node.parent
    if parent is not None and name == parent.name:
        return "WorkflowDataError", f"{start} parent agent '{name}': disallow_transfer_to_parent is set."
    if parent is not None and any(name == peer.name for peer in parent.children):
        return "WorkflowDataError", f"{start} peer agent '{name}': disallow_transfer_to_peers is set."
    return "ValueError", f"{start} unrelated agent '{name}'.\nAvailable agents: {', '.join(known)}"


def transfer_instruction(node: LlmNode, targets: Sequence[Node]) -> str:
    """Return the part of an agent's instruction that lists the agents it may transfer to."""
    agents = "\n".join(f"\nAgent name: {each.name}\nAgent description: {each.description}\n" for each in targets)
    names = ", ".join(f"`{name}`" for name in sorted(each.name for each in targets))
    text = _INSTRUCTION.format(agents=agents, names=names)
    if node.parent is not None and node.can_transfer_to_parent:
        text += _TO_PARENT.format(parent=node.parent.name)
    return text


def transfer_tool(targets: Sequence[Node]) -> Tool:
    """Return the tool by which a model transfers the conversation to one of the targets."""
    name = {"title": "Agent Name", "type": "string", "enum": [each.name for each in targets]}
    parameters = {
        "properties": {"agent_name": name},
        "required": ["agent_name"],
        "title": f"{TRANSFER}Params",
        "type": "object",
    }
    return Tool(TRANSFER, ToolKind.TRANSFER, _DESCRIPTION, parameters)


def extend_transfer_path(path: Sequence[Node], target: Node) -> list[Node]:
    """Return a turn's path down the tree, changed by a transfer from its last agent to `target`.

    The last agent of a path has the conversation; each agent before it transferred to one of its children. A transfer
    to a peer replaces the last agent, one to the parent removes it.
    """
    # `transfer_targets` allows only a child, a peer or the parent.
    source = path[-1]
    if target.parent is source:
        return [*path, target]
    return [*path[: -1 if target.parent is source.parent else -2], target]


def may_begin_turn(node: Node) -> bool:
    """Return whether turns may begin at this agent: it and all agents above it may transfer to their parent."""
    # An agent that may not transfer upwards would have all further turns of the call.
    above: Node | None = node
    while above is not None:
        if not isinstance(above, LlmNode) or not above.can_transfer_to_parent:
            return False
        above = above.parent
    return True
