"""Calls of tools in answers: asks whether they may be made, shows and saves them, lists the tools.

In: the engine thread's messages about calls. Out: permissions for it, calls in the transcript and in the chat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.app.sessions.records import ToolRound
from edgeinfer.app.tui.actions.answering import AnsweringActions
from edgeinfer.app.tui.engine_messages import CallAsked, CallBegun, CallMade, Notified, RoundBegun
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.mcp.answering import Permission
    from edgeinfer.app.mcp.chat_tools import ChatTools

NO_TOOLS = (
    "this chat has no tools: edgeinfer chat --mcp NAME uses those of an MCP server, "
    'and chat = ["NAME"] in [mcp] of your configuration file does so always'
)


class CallingActions(AnsweringActions):
    """Mixin of the chat screen: calls of tools."""

    def start_tools(self) -> None:
        """Start the MCP servers of the chat, if there are any."""
        if self.state.tools is not None:
            self.state.tools.start(self.tell_tool_failure)

    def tell_tool_failure(self, text: str) -> None:
        """Report a server that failed; called from a thread."""
        self.post_message(Notified(text, is_error=True))

    def on_call_asked(self, event: CallAsked) -> None:
        """Ask the person whether a tool may be called."""
        event.stop()
        from edgeinfer.app.mcp.answering import Permission
        from edgeinfer.app.tui.screens.call_question import AskedCall, CallQuestion

        if self.writing is None or self.writing.job != event.job:
            event.answer(Permission.NO)
            return

        def take(permission: Permission | None) -> None:
            if permission is None:
                self.engine.stop()
            event.answer(permission or Permission.NO)

        self.app.push_screen(CallQuestion(AskedCall(event.server, event.tool, event.arguments)), take)

    def on_round_begun(self, event: RoundBegun) -> None:
        """The text so far belongs to a round of calls; what has come after it goes on as the answer's text."""
        event.stop()
        if self.writing is None or self.writing.job != event.job:
            return
        self.take_text()
        rest = "".join(self.writing.pieces)[event.n_shown :]
        self.writing.before, self.writing.pieces[:] = "", [rest]
        self.state.autosave.note(self.writing.message, self.writing.text)
        if (widget := self.transcript.answer(self.writing.message)) is not None:
            widget.restart(rest)
        self.keep_rounds((*self.chat.message(self.writing.message).rounds, event.begun))

    def on_call_begun(self, event: CallBegun) -> None:
        """Say that a tool is being called."""
        event.stop()
        if self.writing is not None and self.writing.job == event.job:
            widget = self.transcript.answer(self.writing.message)
            if widget is not None:
                widget.show_doing(f"calling {event.name} …")

    def on_call_made(self, event: CallMade) -> None:
        """Show and save a call."""
        event.stop()
        if self.writing is None or self.writing.job != event.job:
            return
        *before, last = self.chat.message(self.writing.message).rounds
        self.keep_rounds((*before, replace(last, calls=(*last.calls, event.call))))

    def keep_rounds(self, rounds: tuple[ToolRound, ...]) -> None:
        """Show and save the calls of the answer that is being written."""
        assert self.writing is not None
        if (widget := self.transcript.answer(self.writing.message)) is not None:
            widget.show_rounds(rounds)
        try:
            self.chat.note_rounds(self.writing.message, rounds)
        except EdgeInferError as error:
            self.tell(f"a call is not saved: {error}", is_error=True)

    def action_tools(self, argument: str = "") -> None:
        """Show the tools that answers may call."""
        if self.state.tools is None:
            self.tell(NO_TOOLS)
            return
        from edgeinfer.app.tui.screens.viewer import ViewerScreen

        self.app.push_screen(ViewerScreen("tools that answers may call", tools_text(self.state.tools)))


def tools_text(tools: ChatTools) -> str:
    """The servers of a chat, with their tools and what the person allowed."""
    if not tools.is_ready:
        return f"The servers are starting: {', '.join(server.name for server in tools.servers)}"
    offered = () if tools.toolbox is None else tuple(tools.toolbox.tools.values())
    lines = []
    for server in tools.servers:
        lines += [f"{server.name}: {server.address}", ""]
        for tool in offered:
            if tool.remote.server is server:
                is_trusted = server.trusts(tool.remote.name)
                said = "trusted" if is_trusted else "allowed until you leave" if tool.key in tools.allowed else "asks"
                description = " ".join(tool.remote.description.split())
                lines.append(f"  {tool.remote.name} ({said})  {description}")
        lines.append("")
    return "\n".join([*lines, *(f"failed: {failure}" for failure in tools.failures)])
