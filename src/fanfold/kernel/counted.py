"""How many, for people."""


def counted(count: int, noun: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
