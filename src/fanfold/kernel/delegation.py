"""Automatic delegation: which agents a prompt is for, told from its words alone (notes 7.5).

An agent that the prompt names gets it, whether or not delegation is on: `@review`, `@agent-plan`, "use the verification
subagent". Else each agent has a confidence from 0 to 1, the sum of

- 0.6 for its name among the words of the prompt (a part of that for a part of a name of several words),
- 0.2 more when the prompt begins with it, as an instruction does with its verb,
- 0.2 for each further word that its description shares with the prompt.

Words are compared without their endings, and such that say nothing are left out. The same prompt and agents give the
same answer everywhere: it is recorded as a fact and asks no model.
"""

import re
from collections.abc import Iterator, Mapping

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.record import JsonObject

MAX_TASKS = 32
"""Of one `task` call."""
ONLY_WHEN_NAMED = frozenset({"general", "answer"})
"""They fit everything, so that nothing in a prompt speaks for them."""

_READ_CHARACTERS = 20_000
"""Of a prompt: whom it is for is not said in the middle of a pasted file."""
_LABEL_CHARACTERS = 60
_NAME, _LEADING, _SHARED = 0.6, 0.2, 0.2

_CODE = re.compile(r"(?s)```.*?(?:```|\Z)|`[^`\n]*`")
_MENTION = re.compile(r"(?<![\w@./-])@([\w-]+(?:\.[\w-]+)*)(?![\w/-])")
_REQUEST = re.compile(
    r"""(?ix)
    (?P<negation>(?:\b(?:not|never|without)|n['’]t)\s+(?:\w+\s+)?)?
    \b(?:us(?:e|ing)|ask|run|call|launch|start|invoke|spawn|have|let|with|via
        |deleg\w+\s+(?:\w+\s+)?to|hand\s+\w+\s+(?:over\s+)?to)
    \s+(?:(?:the|an?|our|my|your)\s+)?
    ["'“‘]?(?P<name>[\w][\w.-]*(?:\s[\w.-]+){0,3}?)["'”’]?
    \s+(?:sub-?)?agents?\b
    """
)
_REQUEST_ZH = re.compile(
    r"(?P<negation>不要|别|不)?(?:使用|用|让|请)\s*(?P<name>[\w.-]{0,60}[A-Za-z0-9_-])\s*(?:子\s*)?(?:智能体|代理)"
)
_WORD = re.compile(r"[a-z0-9]+|[\u3400-\u9fff\uf900-\ufaff]+")
_ENDINGS = (
    *("ication", "ations", "ation", "ings", "iers", "ions", "ing", "ier", "ies", "ied", "ers", "ion"),
    *("er", "es", "ed", "s", "e", "y"),
)
_SHORTEST_STEM = 3
_COMMON = """
a about after agent agents all also an and any are as ask at be been before best but by can code could do does each
every file files for from get give has have help how i if in into is it its let lets like make me more must my need
needs new no not of on one only or other our out please project proactively read run should so some sub subagent task
tasks than that the their them then there these they thing things this those to tool tools up us use used user uses
using want was way we what when where which who whole will with without work would write you your
"""
_SAY_NOTHING = frozenset(_COMMON.split())


def plan_delegation(
    prompt: str,
    agents: Mapping[str, AgentDefinition],
    *,
    aliases: Mapping[str, str] | None = None,
    enabled: bool = False,
    min_confidence: float = 0.72,
    max_tasks: int = 4,
    allow_parallel: bool = True,
) -> JsonObject | None:
    """The arguments of the `task` call that stands for the first decision on `prompt`; None to leave it to the model.

    All agents that the prompt names get it, and no other; without such a name, and only when `enabled`, those of at
    least `min_confidence`, best first, at most `max_tasks`, or only the best where `allow_parallel` is False.

    Args:
        aliases: other names of agents.
    """
    text = _CODE.sub(" ", prompt[:_READ_CHARACTERS])
    named, refused = _named(text, agents, aliases or {})
    if named:
        return _call(prompt, named[:MAX_TASKS], is_guess=False)
    if not enabled:
        return None
    guessable = [(name, agent) for name, agent in agents.items() if _is_guessable(agent) and name not in refused]
    scored = [(confidence(text, agent), name) for name, agent in guessable]
    fitting = sorted((-score, name) for score, name in scored if score >= min_confidence)
    chosen = [name for _, name in fitting[: min(max_tasks, MAX_TASKS) if allow_parallel else 1]]
    return _call(prompt, chosen, is_guess=True) if chosen else None


def confidence(prompt: str, agent: AgentDefinition) -> float:
    """How well the words of `prompt` fit the agent's, from 0 to 1."""
    asked = list(_stems(prompt))
    if not asked:
        return 0.0
    words, name = frozenset(asked), frozenset(_stems(agent.name))
    hits = name & words
    score = _NAME * len(hits) / len(name) if name else 0.0
    if asked[0] in hits:
        score += _LEADING
    shared = (frozenset(_stems(agent.description)) - name) & words
    return min(1.0, round(score + _SHARED * len(shared), 6))


# ---- by name --------------------------------------------------------------------------------------------------------


def _named(
    text: str, agents: Mapping[str, AgentDefinition], aliases: Mapping[str, str]
) -> tuple[list[str], frozenset[str]]:
    """Names of the agents that the text asks for, in the order in which it does, and of those that it will not have."""
    known = {alias.lower(): name for alias, name in aliases.items() if name in agents}
    known |= {name.lower(): name for name in agents}
    found = sorted(
        (at, name, is_wanted) for at, word, is_wanted in _asked_for(text) if (name := _known(word, known)) is not None
    )
    refused = frozenset(name for _, name, is_wanted in found if not is_wanted)
    return list(dict.fromkeys(name for _, name, _ in found if name not in refused)), refused


def _known(word: str, known: Mapping[str, str]) -> str | None:
    word = word.lower()
    return known.get(word) or known.get(word.removeprefix("agent-"))


def _asked_for(text: str) -> Iterator[tuple[int, str, bool]]:
    """Where something is named, what, and whether it is wanted."""
    for mention in _MENTION.finditer(text):
        yield mention.start(), mention[1], True
    for pattern in (_REQUEST, _REQUEST_ZH):
        for request in pattern.finditer(text):
            yield request.start("name"), request["name"], not request["negation"]


# ---- by words -------------------------------------------------------------------------------------------------------


def _is_guessable(agent: AgentDefinition) -> bool:
    return not agent.is_hidden and agent.name not in ONLY_WHEN_NAMED


def _stems(text: str) -> Iterator[str]:
    """What is left of the words that say something, in their order; of Chinese each pair of characters."""
    for word in _WORD.findall(text.lower().replace("_", " ")):
        if not word.isascii():
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        elif len(word) > 1 and word not in _SAY_NOTHING:
            yield _stem(word)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            word = word[: -len(ending)]
            break
    is_doubled = len(word) > _SHORTEST_STEM and word[-1] == word[-2] and word[-1] not in "aeiou"
    return word[:-1] if is_doubled else word


# ---- the call -------------------------------------------------------------------------------------------------------


def _call(prompt: str, names: list[str], *, is_guess: bool) -> JsonObject:
    label = " ".join(prompt.split())
    if len(label) > _LABEL_CHARACTERS:
        label = label[: _LABEL_CHARACTERS - 1].rstrip() + "…"
    arguments: JsonObject = {"tasks": [{"agent": name, "description": label, "prompt": prompt} for name in names]}
    if is_guess and len(names) > 1:
        arguments["allow_partial_failure"] = True  # several were tried on a guess: what one of them finds counts
    return arguments
