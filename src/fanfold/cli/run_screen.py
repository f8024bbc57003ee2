"""What a run shows while it goes on: the answer on stdout, the tools on stderr, or every event as JSON."""

from typing import Literal

from fanfold.cli.call_text import call_text
from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.tally import tokens_text
from fanfold.contracts.events import AgentEvent, AgentResult
from fanfold.kernel.counted import counted

_LONGEST_CALL = 120


class RunScreen:
    """Text is streamed to a terminal only; a file or pipe gets the final answer and nothing before it."""

    def __init__(self, console: Console, output: Literal["json", "jsonl"] | None, session_id: str) -> None:
        self.console = console
        self._output = output
        self._session_id = session_id
        self._is_streamed = output is None and console.out_width is not None
        self._turn = 0
        self._turn_text = ""
        self.nobody_answers = False
        """True: a child's call that needs an approval fails, and the model is told so."""
        self._unanswered: set[str] = set()

    @property
    def is_for_people(self) -> bool:
        """Not for a program that reads JSON."""
        return self._output is None

    def show(self, event: AgentEvent) -> None:
        if self.nobody_answers and event.type == "confirmation_required" and "task_id" in (event.metadata or {}):
            self._unanswered.add(event.tool_name or "")
        if self._output is not None:
            if self._output == "jsonl":
                self.console.write_json(event.to_dict())
            return
        match event.type:
            case "turn_start":
                self._start_turn(event.turn or 0)
            case "text_delta" if self._is_streamed:
                text = event.text or ""
                self._turn_text += text
                self.console.write(text)
            case "tool_execution_start":
                self._end_line()
                self.console.say(f"· {cut(call_text(event.tool_name, event.payload.get('args')), _LONGEST_CALL)}")
            case "tool_end" if event.exit_code:
                self._end_line()
                reason = cut(one_line(event.tool_output or ""), _LONGEST_CALL)
                self.console.say(f"· {event.tool_name} failed: {reason}")
            case _:
                pass

    def _start_turn(self, turn: int) -> None:
        self._end_line()
        if turn == self._turn and self._turn_text:
            self.console.warn("note: the connection broke; the answer starts over")
        self._turn, self._turn_text = turn, ""

    def _end_line(self) -> None:
        if self._turn_text and not self._turn_text.endswith("\n"):
            self.console.write("\n")
            self._turn_text += "\n"

    def say(self, text: str) -> None:
        """A line for people, on one of its own."""
        if self._output is None:
            self._end_line()
            self.console.say(text)

    def end(self, result: AgentResult) -> None:
        """Show what was not shown yet, and how to go on."""
        if self._output is not None:
            if self._output == "json":
                head = {"schema": "fanfold/run/v1", "session_id": self._session_id}
                unanswered = {"unanswered": sorted(self._unanswered)} if self._unanswered else {}
                self.console.write_json({**head, **result.to_dict(), **unanswered})
            return
        if self._turn_text.strip() != result.text.strip():
            self._end_line()
            self.console.write(result.text + ("" if result.text.endswith("\n") else "\n"))
        self._end_line()
        if self._unanswered:
            rules = " ".join(f"--allow {tool}" for tool in sorted(self._unanswered))
            tools = ", ".join(sorted(self._unanswered))
            self.console.warn(f"hint: a child wanted to use {tools}, and nobody can be asked here; allow it with")
            self.console.warn(f"      {rules}, or answer from another terminal, with --wait")
        cost = f"{tokens_text(result.total_tokens)} tokens, {counted(result.tool_calls_count, 'tool call')}"
        self.console.say(f"session {self._session_id}: {cost}")
