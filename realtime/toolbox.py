"""The tools of one response: what the model is told, what may be called, and who runs it."""

from __future__ import annotations

from realtime.chat_format import ToolSpec
from realtime.errors import ProtocolError
from realtime.session_config import FunctionChoice, FunctionTool, McpChoice, McpTool, SessionConfig, ToolChoice
from realtime.tools import SERVER_LABEL, SERVER_TOOLS, ServerTool


class Toolbox:
    """Built from a configuration by `of`; false when there is no tool at all."""

    def __init__(self, functions: dict[str, FunctionTool], server_tools: dict[str, ServerTool]) -> None:
        self._functions = functions
        self._server_tools = server_tools

    @classmethod
    def of(cls, config: SessionConfig) -> Toolbox:
        """Raises `ProtocolError`: tool_not_found for a server or tool that does not exist here, invalid_value for tools
        that want approval."""
        functions = {tool.name: tool for tool in config.tools if isinstance(tool, FunctionTool)}
        server_tools: dict[str, ServerTool] = {}
        for tool in config.tools:
            if isinstance(tool, McpTool):
                server_tools |= _server_tools(tool)
        if config.tool_choice == "none":
            return cls({}, {})
        return cls(functions, server_tools)

    def __bool__(self) -> bool:
        return bool(self._functions or self._server_tools)

    @property
    def names(self) -> list[str]:
        return [*self._functions, *self._server_tools]

    def specs(self) -> list[ToolSpec]:
        """Name, description and schema of every tool, in the client's order."""
        functions = [
            ToolSpec(tool.name, tool.description or "", tool.parameters or {"type": "object", "properties": {}})
            for tool in self._functions.values()
        ]
        return functions + [
            ToolSpec(tool.name, tool.description, tool.parameters) for tool in self._server_tools.values()
        ]

    def forced(self, choice: ToolChoice) -> list[str]:
        """The tools of which the first call must take one; empty when the model is free."""
        if isinstance(choice, FunctionChoice):
            return [choice.name]
        if isinstance(choice, McpChoice) and choice.name is not None:
            return [choice.name]
        if isinstance(choice, McpChoice):
            return list(self._server_tools)
        return self.names if choice == "required" else []

    def is_client_function(self, name: str) -> bool:
        return name in self._functions

    def speculative_tool(self, name: str) -> ServerTool | None:
        """The tool of that name, if it may be run before anything is sent."""
        tool = self.server_tool(name)
        return tool if tool is not None and tool.speculative and not self.is_client_function(name) else None

    def server_tool(self, name: str) -> ServerTool | None:
        return self._server_tools.get(name)


def _server_tools(tool: McpTool) -> dict[str, ServerTool]:
    if tool.server_label != SERVER_LABEL:
        raise ProtocolError("tool_not_found", f"there is no tool server {tool.server_label[:100]!r}", "tools")
    if tool.require_approval not in (None, "never"):
        # Running a tool without the approval that was asked for would be worse than not running it.
        raise ProtocolError("invalid_value", 'require_approval can only be "never" so far', "tools")
    names = SERVER_TOOLS if tool.allowed_names is None else tool.allowed_names
    unknown = [name for name in names if name not in SERVER_TOOLS]
    if unknown:
        raise ProtocolError("tool_not_found", f"there is no tool {unknown[0]!r}", "tools")
    return {name: SERVER_TOOLS[name] for name in names}
