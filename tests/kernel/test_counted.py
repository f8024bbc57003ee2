import pytest

from fanfold.kernel.counted import counted


@pytest.mark.parametrize(("count", "text"), [(0, "0 agents"), (1, "1 agent"), (2, "2 agents"), (1_000, "1000 agents")])
def test_one_of_a_kind_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "agent") == text
