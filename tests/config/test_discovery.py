"""Which file is the configuration, and what is said when it cannot be read."""

import os
from pathlib import Path

import pytest

from fanfold.config.discovery import load
from fanfold.errors import ConfigError


def write(path: Path, rounds: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"max_tool_rounds = {rounds}\n")
    return path


def problem_of(source: str | Path | None, start: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, start=start, environ=environ or {})
    (problem,) = caught.value.problems
    return problem


def test_nearer_configuration_wins(tmp_path: Path) -> None:
    root, xdg = tmp_path / "repo", tmp_path / "xdg"
    start = root / "a" / "b"
    start.mkdir(parents=True)
    (root / ".git").mkdir()
    environ = {"XDG_CONFIG_HOME": str(xdg)}

    def found() -> tuple[int | None, str]:
        settings = load(None, start=start, environ=environ)
        return settings.max_tool_rounds, settings.source

    assert found() == (None, "built-in defaults")
    write(tmp_path / "agent.acl", 1)  # above the checkout: never looked at
    assert found() == (None, "built-in defaults")
    user = write(xdg / "fanfold" / "config.acl", 2)
    assert found() == (2, str(user))
    top = write(root / "agent.toml", 3)
    assert found() == (3, str(top))
    write(start / "agent.acl", 4)
    assert found() == (4, "agent.acl")
    named = write(tmp_path / "elsewhere.toml", 5)
    environ["FANFOLD_CONFIG"] = str(named)
    assert found() == (5, str(named))


def test_outside_of_a_checkout_no_parent_is_searched(tmp_path: Path) -> None:
    write(tmp_path / "agent.acl", 1)
    start = tmp_path / "below"
    start.mkdir()

    assert load(None, start=start, environ={}).max_tool_rounds is None
    assert load(None, start=tmp_path, environ={}).max_tool_rounds == 1


def test_user_configuration_defaults_to_dot_config_in_the_home(tmp_path: Path) -> None:
    write(tmp_path / "home" / ".config" / "fanfold" / "config.toml", 7)

    assert load(None, start=tmp_path, environ={"HOME": str(tmp_path / "home")}).max_tool_rounds == 7


def test_two_configurations_in_one_directory_are_an_error_that_names_both(tmp_path: Path) -> None:
    acl, toml = write(tmp_path / "agent.acl", 1), write(tmp_path / "agent.toml", 2)

    assert problem_of(None, tmp_path) == f"both {acl} and {toml} exist; keep one of them"


def test_a_path_counts_from_start_and_stands_in_messages_as_it_was_given(tmp_path: Path) -> None:
    write(tmp_path / "conf" / "x=1.acl", 0)
    write(tmp_path / "conf" / "y.acl", 9)

    assert problem_of("conf/x=1.acl", tmp_path) == "conf/x=1.acl:1:19: max_tool_rounds must be at least 1"
    assert load("conf/y.acl", start=tmp_path, environ={}).max_tool_rounds == 9


def test_text_with_a_line_end_an_equals_sign_or_a_brace_is_the_configuration_itself(tmp_path: Path) -> None:
    settings = load("max_tool_rounds = 3", start=tmp_path, environ={})

    assert (settings.max_tool_rounds, settings.source) == (3, "inline text")
    assert load("\n# nothing\n", start=tmp_path, environ={}).source == "inline text"
    assert problem_of("max_tool_rounds = 0", tmp_path).startswith("inline text:1:19: ")
    assert problem_of('{"max_tool_rounds": 3}', tmp_path).startswith("inline text:1:1: this is not ACL: ")


def test_a_named_file_that_is_not_there_is_one_line_with_the_path_and_the_way_out(tmp_path: Path) -> None:
    missing, way_out = tmp_path / "a=b.acl", "`fanfold init` writes an agent.acl"

    assert problem_of("a=b.acl", tmp_path) == f"the config file {missing} does not exist; {way_out}"
    assert problem_of(Path("a=b.acl"), tmp_path) == f"the config file {missing} does not exist; {way_out}"
    named = problem_of(None, tmp_path, {"FANFOLD_CONFIG": "a=b.acl"})
    assert named == f"FANFOLD_CONFIG names {missing}, which does not exist; {way_out}"


def test_what_is_no_configuration_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")

    assert problem_of("a.json", tmp_path) == (
        "a.json must end in .acl or .toml, which tells its syntax (JSON is not accepted)"
    )
    assert problem_of(str(tmp_path), tmp_path) == f"{tmp_path} is a directory; name the config file in it"


def test_a_file_that_cannot_be_read_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "agent.acl").symlink_to("nowhere")
    (tmp_path / "latin.acl").write_bytes(b'# one\ndefault_model = "\xe9"\n')
    (tmp_path / "huge.acl").write_bytes(b"#" * (1024 * 1024 + 1))

    os.mkfifo(tmp_path / "pipe.acl")

    assert problem_of("pipe.acl", tmp_path) == "cannot read pipe.acl: it is not a regular file"
    assert problem_of(None, tmp_path) == "cannot read agent.acl: No such file or directory"
    assert problem_of("latin.acl", tmp_path) == "latin.acl:2: not UTF-8 text; save it as UTF-8"
    assert problem_of("huge.acl", tmp_path) == "cannot read huge.acl: it is larger than 1,048,576 bytes"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom file modes can keep out")
def test_a_file_without_permission_is_told_so(tmp_path: Path) -> None:
    write(tmp_path / "agent.acl", 1).chmod(0)

    assert problem_of(None, tmp_path) == "cannot read agent.acl: Permission denied"


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    for name in ("x.acl", "x.toml"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf# one\r\nmax_tool_rounds = 3\r\n")
        assert load(name, start=tmp_path, environ={}).max_tool_rounds == 3
