"""Nothing that a tool names is outside of the workspace, whatever the name and whatever happens meanwhile."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import UsageError
from fanfold.tools.refusal import ToolRefusal
from fanfold.tools.workspace import Workspace


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/secret.txt",
        "a/../../outside",
        "/etc/passwd",
        "/",
        "way_out",
        "way_out/secret.txt",
        "way_out/new/file.txt",
        "way_out/../outside/secret.txt",
        "",
        "nul\0byte",
        "x" * 256,
        "a/" * 3_000,
        "\ud800",
    ],
)
def test_paths_that_lead_out_or_are_none_are_refused(workspace: Workspace, link_out: Path, path: str) -> None:
    assert link_out.is_symlink()
    with pytest.raises(ToolRefusal, match="escapes workspace"):
        workspace.resolve(path)


def test_a_dangling_link_that_points_out_is_refused_for_a_new_file(workspace: Workspace) -> None:
    (workspace.root / "new.txt").symlink_to(workspace.root.parent / "not_there.txt")
    with pytest.raises(ToolRefusal, match="escapes workspace"):
        workspace.resolve("new.txt")


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a.txt", "a.txt"),
        ("./b/../a.txt", "a.txt"),
        ("in/x", "b/x"),
        ("new/deep/file", "new/deep/file"),
        (".", "."),
    ],
)
def test_paths_inside_resolve_to_their_real_place(workspace: Workspace, path: str, real: str) -> None:
    (workspace.root / "b").mkdir()
    (workspace.root / "in").symlink_to("b")
    assert workspace.resolve(path) == workspace.root / real
    assert workspace.resolve(str(workspace.root / path)) == workspace.root / real
    assert workspace.canonical(path) == real


def test_canonical_leaves_refused_paths_as_they_are(workspace: Workspace) -> None:
    assert workspace.canonical("../outside") == "../outside"


@pytest.fixture(scope="module")
def tangle(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Links in, out, up, in a circle and to nothing."""
    top = tmp_path_factory.mktemp("tangle")
    root = top / "ws"
    (root / "d" / "e").mkdir(parents=True)
    (root / "f").write_text("f")
    for name, target in {
        "out": str(top),
        "up": "..",
        "deep": "d/e",
        "circle": "circle",
        "nowhere": "/nowhere/at/all",
        "d/back": "../..",
        "d/e/root": str(root),
    }.items():
        (root / name).symlink_to(target)
    return Workspace(root)


_PARTS = st.sampled_from(
    ["..", ".", "", "d", "e", "f", "out", "up", "deep", "circle", "nowhere", "back", "root", "ws", "new"]
) | st.text(max_size=5)


@given(parts=st.lists(_PARTS, max_size=8), prefix=st.sampled_from(["", "/", "//", "./", "ROOT/"]))
def test_what_resolves_is_always_inside(tangle: Workspace, parts: list[str], prefix: str) -> None:
    path = prefix.replace("ROOT", str(tangle.root)) + "/".join(parts)
    try:
        real = tangle.resolve(path)
    except ToolRefusal:
        return
    assert real.is_relative_to(tangle.root)
    assert os.path.realpath(real) == str(real)


def test_a_folder_swapped_for_a_link_after_resolving_gives_no_file_from_outside(workspace: Workspace) -> None:
    folder = workspace.root / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("harmless")
    path = workspace.resolve("outside/secret.txt")
    folder.rename(workspace.root / "moved")
    folder.symlink_to(workspace.root.parent / "outside")
    with pytest.raises(ToolRefusal, match="escapes workspace"):
        workspace.open_file(path)
    with pytest.raises(ToolRefusal, match="escapes workspace"):
        workspace.replace(path, b"overwritten")
    assert sorted(p.name for p in (workspace.root.parent / "outside").iterdir()) == ["secret.txt"]
    assert (workspace.root.parent / "outside" / "secret.txt").read_text() == "secret\n"


def test_a_file_swapped_for_a_link_after_resolving_is_not_opened(workspace: Workspace) -> None:
    path = workspace.resolve("a")
    path.symlink_to(workspace.root.parent / "outside" / "secret.txt")
    with pytest.raises(OSError, match="symbolic link"):
        workspace.open_file(path)


def test_pipes_and_folders_are_no_files(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    with pytest.raises(ToolRefusal, match="not a regular file"):
        workspace.open_file(workspace.resolve("pipe"))
    with pytest.raises(ToolRefusal, match="is a directory; use ls"):
        workspace.open_file(workspace.root)


def test_a_pipe_is_not_replaced(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    with pytest.raises(ToolRefusal, match="not a regular file"):
        workspace.replace(workspace.resolve("pipe"), b"x")
    assert (workspace.root / "pipe").is_fifo()
    assert len(list(workspace.root.iterdir())) == 1


def test_replace_keeps_the_mode_and_leaves_nothing_else(workspace: Workspace) -> None:
    path = workspace.root / "run.sh"
    path.write_text("old")
    path.chmod(0o751)
    workspace.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o751
    assert list(workspace.root.iterdir()) == [path]


def test_a_change_since_it_was_read_is_not_overwritten(workspace: Workspace) -> None:
    path = workspace.root / "a"
    path.write_text("somebody else's")
    with pytest.raises(ToolRefusal, match="Concurrent modification detected on a"):
        workspace.replace(path, b"mine", expected=b"as I read it")
    assert path.read_text() == "somebody else's"
    assert list(workspace.root.iterdir()) == [path]


def test_concurrent_swaps_lose_no_update(workspace: Workspace) -> None:
    path = workspace.root / "count"
    path.write_text("0")

    def add_ten() -> None:
        done = 0
        while done < 10:
            try:
                before = path.read_bytes()
                workspace.replace(path, str(int(before) + 1).encode(), expected=before)
                done += 1
            except ToolRefusal:
                continue

    threads = [threading.Thread(target=add_ten) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "40"


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".git/hooks/pre-commit",
        "sub/.git/config",
        ".a3s/effect-log/x",
        "agent.acl",
        "agent.toml",
        "sub/agent.acl",
        "deep/er/Agent.TOML",
        ".GIT/x",
    ],
)
def test_what_steers_the_host_is_protected(workspace: Workspace, path: str) -> None:
    with pytest.raises(ToolRefusal, match="is protected"):
        workspace.refuse_protected(workspace.resolve(path))


@pytest.mark.parametrize(
    "path", ["src/my-agent.acl", "agent.acl.md", ".github/workflows/ci.yml", ".gitignore", "git", "."]
)
def test_other_names_are_not_protected(workspace: Workspace, path: str) -> None:
    workspace.refuse_protected(workspace.resolve(path))


@pytest.mark.parametrize("name", ["missing", "file", "circle", "nul\0"])
def test_a_root_that_is_no_folder_is_a_usage_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UsageError, match=f"workspace '.*{name}'"):
        Workspace(tmp_path / name)
