"""Code blocks of answers: running them, and piping them into a command, each only after a yes on a screen of its own.

In: commands with the number of a block. Out: that screen; its output as an attachment of the next message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.tui.actions.copying import Copying

if TYPE_CHECKING:
    from edgeinfer.app.chat.code_running import CodeCommand


class CodingActions(Copying):
    """Mixin of the chat screen: run and pipe code blocks."""

    def action_run(self, argument: str = "") -> None:
        """Run a code block by its language's interpreter: /run [NUMBER]."""
        from edgeinfer.app.chat.code_running import interpreter

        if (fence := self.chosen_fence(argument)) is not None:
            self.ask_to_run(interpreter(fence.language), fence.text)

    def action_pipe(self, argument: str = "") -> None:
        """Pipe a code block into a command: /pipe [NUMBER] COMMAND."""
        from edgeinfer.app.chat.code_running import CodeCommand

        first, _, rest = argument.partition(" ")
        number, line = (first, rest.strip()) if first.isdigit() else ("", argument.strip())
        if not line:
            self.tell("into which command? /pipe [NUMBER] COMMAND, such as /pipe 1 wc -l")
        elif (fence := self.chosen_fence(number)) is not None:
            self.ask_to_run(CodeCommand(line=line), fence.text)

    def ask_to_run(self, command: CodeCommand, code: str) -> None:
        """Show the question; the output may come back as an attachment."""
        from edgeinfer.app.tui.screens.code_run import CodeRunScreen

        self.app.push_screen(CodeRunScreen(command, code), self.take_output)

    def take_output(self, output: str | None) -> None:
        """Attach the output of a run to the next message."""
        if output:
            self.composer.attach_text(output, "output")
