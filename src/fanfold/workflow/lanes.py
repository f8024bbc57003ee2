"""Lanes: where in its run a script stands, whatever the timing (spec-workflow 5.3).

The root lane is empty. The k-th `parallel` or `pipeline` of a lane splits it: branch i is `<lane>/<k>.<i>`, stage s of
an item `<lane>/<k>.<i>.<s>`, a nested workflow `<lane>/<k>:<name>`. The n-th call of `agent` in a lane stands at
`<lane>#<n>`. The counters of a lane are its own, so no order of completion moves a path.
"""


class Lane:
    __slots__ = ("_calls", "_draws", "_splits", "is_one_agent", "path", "phase")

    def __init__(self, path: str = "", phase: str | None = None) -> None:
        self.path = path
        self.phase = phase
        """The title that its agents belong to, unless they say otherwise."""
        self.is_one_agent = False
        """All that comes of it is the answer of one agent, which nobody sees before its siblings have ended."""
        self._calls = 0
        self._splits = 0
        self._draws = 0

    def next_call(self) -> str:
        place = f"{self.path}#{self._calls}"
        self._calls += 1
        return place

    def next_split(self) -> str:
        place = f"{self.path}/{self._splits}"
        self._splits += 1
        return place

    def next_draw(self) -> str:
        """Of a random number or a uuid."""
        place = f"{self.path}?{self._draws}"
        self._draws += 1
        return place

    def branch(self, place: str) -> "Lane":
        """A lane at `place`, in the same phase."""
        return Lane(place, self.phase)
