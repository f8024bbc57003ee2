"""git: what it shows, that it changes nothing, and that a hostile repository neither runs code nor opens another."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import ToolScope
from fanfold.tools.git import GitTool
from fanfold.tools.git_process import MOST_MEMORY_KIB
from fanfold.tools.sandbox import sandbox_fault
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]
Processes = Callable[[str], list[int]]

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="git needs a POSIX system"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
NO_BWRAP = "no-such-program"
needs_bwrap = pytest.mark.skipif(sandbox_fault() is not None, reason=f"no sandbox: {sandbox_fault()}")
both = pytest.mark.parametrize(
    "bwrap", [NO_BWRAP, pytest.param("bwrap", marks=needs_bwrap)], ids=["direct", "sandboxed"]
)

PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2024-05-06T07:08:09Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2024-05-06T07:08:09Z",
}


def git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=PLAIN, input=given, capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit(folder: Path, subject: str, files: dict[str, str]) -> str:
    """Write `files` and commit all that there is."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", subject)
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repo(workspace: Workspace) -> Path:
    git(workspace.root, "init", "--quiet", "--initial-branch=main")
    return workspace.root


@pytest.fixture
def tool(workspace: Workspace) -> GitTool:
    return GitTool(workspace, bwrap=NO_BWRAP)


# ---- what it shows ------------------------------------------------------------------------------------------


@both
def test_status_tells_the_branch_and_each_change_in_pages(
    repo: Path, workspace: Workspace, call: Call, bwrap: str
) -> None:
    tool = GitTool(workspace, bwrap=bwrap)
    commit(repo, "first", {"a.txt": "1\n", "b.txt": "1\n2\n3\n4\n"})
    assert call(tool, command="status").output == "## main\n[no change]"
    (repo / "a.txt").write_text("2\n")
    git(repo, "mv", "b.txt", "c.txt")
    (repo / "new\nline.txt").write_text("x")
    assert call(tool, command="status").output == "## main\n M a.txt\nR  b.txt -> c.txt\n?? new?line.txt"
    assert call(tool, command="status", limit=1).output == ("## main\n M a.txt\n[2 more; continue with cursor=1]")
    assert call(tool, command="status", path="a.txt").output == "## main\n M a.txt"


@both
def test_log_goes_back_in_pages(repo: Path, workspace: Workspace, call: Call, bwrap: str) -> None:
    tool = GitTool(workspace, bwrap=bwrap)
    hashes = [commit(repo, f"step {n}", {"a.txt": f"{n}\n"}) for n in range(12)]
    lines = call(tool, command="log").output.splitlines()
    assert lines[0] == f"{hashes[-1]}  2024-05-06  Ada  step 11  HEAD -> main"
    assert lines[9:] == [f"{hashes[2]}  2024-05-06  Ada  step 2", "[more commits follow; continue with cursor=10]"]
    rest = call(tool, command="log", cursor=10).output
    assert rest == f"{hashes[1]}  2024-05-06  Ada  step 1\n{hashes[0]}  2024-05-06  Ada  step 0"
    assert call(tool, command="log", cursor=12).output == "[no commit]"
    between = call(tool, command="log", ref=f"{hashes[3]}..{hashes[5]}").output
    assert [line.split("  ")[3] for line in between.splitlines()] == ["step 5", "step 4"]
    assert "goes up to" not in call(tool, command="log", cursor=4_800, limit=200).output
    assert "only the newest 5000 commits" in call(tool, command="log", cursor=4_801, limit=200).output


def test_log_of_a_path_is_about_that_path(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "one", {"a.txt": "1"})
    commit(repo, "two", {"sub/b.txt": "1"})
    assert "one" in call(tool, command="log", path="a.txt").output
    assert "two" not in call(tool, command="log", path="a.txt").output
    assert "two" in call(tool, command="log", path="sub").output


def test_before_the_first_commit_there_is_a_diff_but_no_log(repo: Path, tool: GitTool, call: Call) -> None:
    assert call(tool, command="log").output == "[no commit yet]"
    assert call(tool, command="diff").output == "[no difference]"
    (repo / "a.txt").write_text("new\n")
    git(repo, "add", "a.txt")
    assert "+new" in call(tool, command="diff").output
    assert call(tool, command="status").output.splitlines()[-1] == "A  a.txt"


@both
def test_diff_shows_what_is_not_committed_staged_or_not(
    repo: Path, workspace: Workspace, call: Call, bwrap: str
) -> None:
    tool = GitTool(workspace, bwrap=bwrap)
    commit(repo, "first", {"a.txt": "1\n", "b.txt": "1\n"})
    assert call(tool, command="diff").output == "[no difference]"
    (repo / "a.txt").write_text("staged\n")
    git(repo, "add", "a.txt")
    (repo / "b.txt").write_text("not staged\n")
    answer = call(tool, command="diff")
    assert "+staged" in answer.output
    assert "+not staged" in answer.output
    assert answer.output.startswith(" a.txt | 2 +-\n b.txt | 2 +-\n 2 files changed")
    assert answer.source_anchors == ("a.txt", "b.txt")
    assert "not staged" not in call(tool, command="diff", path="a.txt").output


def test_diff_compares_commits_in_each_notation(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "base", {"a.txt": "base\n"})
    git(repo, "switch", "--quiet", "--create", "side")
    commit(repo, "side", {"a.txt": "side\n"})
    git(repo, "switch", "--quiet", "main")
    commit(repo, "main", {"a.txt": "main\n"})

    def changed(**args: str) -> list[str]:
        lines = call(tool, command="diff", **args).output.splitlines()
        return [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]

    assert changed(ref="side") == changed(ref="side", target="main") == changed(ref="side..main") == ["-side", "+main"]
    assert changed(ref="side..") == ["-side", "+main"]
    assert changed(ref="side...main") == ["-base", "+main"]
    assert "give either a range" in call(tool, command="diff", ref="side..main", target="main").output


@both
def test_show_gives_a_commit_with_its_patch(repo: Path, workspace: Workspace, call: Call, bwrap: str) -> None:
    tool = GitTool(workspace, bwrap=bwrap)
    commit(repo, "base", {"a.txt": "1\n", "b.txt": "1\n"})
    commit(repo, "both\n\nand why", {"a.txt": "2\n", "b.txt": "2\n"})
    answer = call(tool, command="show")
    assert "Author: Ada <ada@example.org>\nDate: 2024-05-06T07:08:09+00:00\n\nboth\n\nand why\n" in answer.output
    assert answer.output.count("@@") == 4
    assert answer.source_anchors == ("a.txt", "b.txt")
    only = call(tool, command="show", path="b.txt")
    assert only.source_anchors == ("b.txt",)
    assert "a.txt" not in only.output


def test_show_of_a_merge_is_what_it_brought_in(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "base", {"a.txt": "1\n"})
    git(repo, "switch", "--quiet", "--create", "side")
    commit(repo, "side", {"side.txt": "from the side\n"})
    git(repo, "switch", "--quiet", "main")
    commit(repo, "main", {"a.txt": "2\n"})
    git(repo, "merge", "--quiet", "--message", "join", "side")
    output = call(tool, command="show").output
    assert "join" in output
    assert "+from the side" in output
    assert "a.txt" not in output


def test_show_gives_a_commit_without_any_change_too(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "base", {"a.txt": "1\n"})
    git(repo, "commit", "--quiet", "--allow-empty", "--message", "only words")
    assert call(tool, command="show").output.endswith("\n\nonly words\n")


def test_show_gives_a_file_as_it_was(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "one", {"sub/a.txt": "old\n", "empty.txt": ""})
    commit(repo, "two", {"sub/a.txt": "new\n", "raw": "x\0y"})
    answer = call(tool, command="show", ref="HEAD~1:sub/a.txt")
    assert (answer.output, answer.exit_code, answer.source_anchors) == ("old", 0, ("sub/a.txt",))
    assert call(tool, command="show", ref="HEAD~1:./sub/../sub/a.txt").output == "old"
    assert call(tool, command="show", ref=":empty.txt").output == "[the file is empty]"
    for ref, reason in (
        ("HEAD:sub", "sub is no file of HEAD"),
        ("HEAD:gone.txt", "gone.txt is no file of HEAD"),
        ("HEAD:raw", "raw is a binary file"),
        ("HEAD:", "needs the path of a file"),
        ("nothing:a.txt", "'nothing' is no commit"),
    ):
        answer = call(tool, command="show", ref=ref)
        assert reason in answer.output
        assert answer.exit_code == 1


def test_blame_tells_who_wrote_each_line_in_pages(repo: Path, tool: GitTool, call: Call) -> None:
    first = commit(repo, "one", {"a.txt": "one\ntwo\x0cstill two\n"})
    second = commit(repo, "two", {"a.txt": "one\ntwo\x0cstill two\nthree\n"})
    answer = call(tool, command="blame", path="a.txt", limit=2)
    lines = answer.output.splitlines()
    assert [line.split()[0].lstrip("^")[:7] for line in lines[:2]] == [first, first]
    assert lines[1].endswith("two?still two")
    assert lines[2] == "[more lines follow; continue with cursor=2]"
    assert second in call(tool, command="blame", path="a.txt", cursor=2).output
    assert "three" not in call(tool, command="blame", path="a.txt", ref=first).output
    assert "has only 3 lines" in call(tool, command="blame", path="a.txt", cursor=9).output
    assert call(tool, command="blame").output == "blame needs the path of a file"


def test_branches_tags_stashes_and_remotes_are_listed(repo: Path, tool: GitTool, call: Call) -> None:
    short = commit(repo, "first", {"a.txt": "1\n"})
    assert call(tool, command="tag").output == "[no tag]"
    assert call(tool, command="stash").output == "[nothing is stashed]"
    assert call(tool, command="remote").output == "[no remote]"
    git(repo, "branch", "side")
    git(repo, "tag", "v1")
    git(repo, "remote", "add", "origin", "https://me:hunter2@example.org/x.git")
    git(repo, "remote", "add", "other", "git@example.org:x.git")
    (repo / "a.txt").write_text("2\n")
    git(repo, "stash", "push", "--quiet", "--message", "half done")
    assert call(tool, command="branch").output.splitlines() == [
        f"* main  {short}  2024-05-06  first",
        f"  side  {short}  2024-05-06  first",
    ]
    assert call(tool, command="branch", limit=1).output.splitlines()[1] == "[1 more; continue with cursor=1]"
    assert call(tool, command="tag").output == f"v1  {short}  2024-05-06  first"
    assert call(tool, command="stash").output == "stash@{0}  On main: half done"
    assert "+2" in call(tool, command="show", ref="stash@{0}").output
    assert call(tool, command="remote").output == (
        "origin  https://***@example.org/x.git\nother  git@example.org:x.git"
    )


def test_a_long_patch_comes_in_pages_of_whole_lines(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "base", {"a.txt": ""})
    commit(repo, "long", {"a.txt": "".join(f"line ü {n}\n" for n in range(2_000))})
    whole = call(tool, command="show", max_bytes=102_400).output
    pages, offset = [], 0
    while True:
        answer = call(tool, command="show", max_bytes=4_000, byte_offset=offset)
        page, more, at = answer.output.partition("\n[more follows; continue with byte_offset=")
        assert len(page.encode()) <= 4_000
        pages.append(page)
        if not more:
            break
        offset = int(at.rstrip("]"))
    assert "\n".join(pages) == whole
    assert "exceeds the output" in call(tool, command="show", byte_offset=1_000_000).output


def test_a_workspace_that_is_a_folder_of_a_repository_sees_only_itself(repo: Path, call: Call) -> None:
    commit(repo, "both", {"top.txt": "top\n", "sub/a.txt": "1\n"})
    commit(repo, "only the top", {"top.txt": "secret\n"})
    commit(repo, "below", {"sub/a.txt": "2\n"})
    (repo / "top.txt").write_text("secret change\n")
    (repo / "sub" / "a.txt").write_text("3\n")
    tool = GitTool(Workspace(repo / "sub"), bwrap=NO_BWRAP)
    assert call(tool, command="status").output == "## main\n M a.txt"
    assert [line.split("  ")[3] for line in call(tool, command="log").output.splitlines()] == ["below", "both"]
    answer = call(tool, command="diff")
    assert answer.source_anchors == ("a.txt",)
    assert "--- a/a.txt" in answer.output
    assert call(tool, command="show", ref="HEAD:a.txt").output == "2"
    assert "2024" in call(tool, command="blame", path="a.txt", ref="HEAD").output
    shown = [call(tool, command="show", ref=ref).output for ref in ("HEAD~1", "HEAD:../top.txt", "HEAD:top.txt")]
    assert all("secret" not in output for output in (*shown, answer.output))
    assert "escapes workspace" in call(tool, command="log", path="../top.txt").output


# ---- what it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["commit", "push", "checkout", "reset", "worktree", "config"])
def test_what_changes_something_is_refused_and_points_to_bash(tool: GitTool, call: Call, command: str) -> None:
    answer = call(tool, command=command)
    assert answer.output == f"git {command} is refused: this tool only reads; use bash for what changes something"
    assert answer.exit_code == 1


def test_an_unknown_command_is_answered_with_the_known_ones(tool: GitTool, call: Call) -> None:
    assert call(tool, command="lgo").output == (
        "Unknown command: lgo; there are status, log, diff, show, blame, branch, tag, stash, remote"
    )
    assert "status takes no ref; it takes cursor, limit, path" in call(tool, command="status", ref="HEAD").output


def test_a_folder_without_a_repository_is_told_so(tool: GitTool, workspace: Workspace, call: Call) -> None:
    answer = call(tool, command="status")
    assert (answer.output, answer.exit_code) == (f"Not a git repository: {workspace.root}", 1)
    (workspace.root / ".git").mkdir()
    assert call(tool, command="status").output == f"Not a git repository: {workspace.root}"


def test_without_git_it_says_what_is_missing(repo: Path, workspace: Workspace, call: Call) -> None:
    answer = call(GitTool(workspace, program="no-such-git"), command="status")
    assert answer.exit_code == 1
    assert answer.output.startswith("Git is not available for this workspace backend: there is no program")


@pytest.mark.parametrize(
    "args",
    [
        {"command": "log", "ref": "--output=made"},
        {"command": "diff", "ref": "--output=made"},
        {"command": "diff", "ref": "HEAD", "target": "--output=made"},
        {"command": "show", "ref": "--output=made"},
        {"command": "log", "ref": "HEAD..--output=made"},
        {"command": "blame", "path": "--output=made"},
        {"command": "diff", "ref": "HEAD --output=made"},
        {"command": "log", "ref": "HEAD\n--output=made"},
    ],
)
def test_no_argument_is_taken_for_an_option(repo: Path, tool: GitTool, call: Call, args: dict[str, str]) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    assert call(tool, **args).exit_code == 1
    assert not (repo / "made").exists()


def test_a_path_means_itself_and_no_pattern(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "first", {"a.txt": "1\n", "-p": "odd\n", ":(top)x": "magic\n"})
    for path in ("*", ":(exclude)a.txt", ":/", ":!a.txt"):
        assert call(tool, command="log", path=path).output == "[no commit]"
    for path in ("-p", ":(top)x"):
        assert "first" in call(tool, command="log", path=path).output
        assert "2024" in call(tool, command="blame", path=path).output
        assert call(tool, command="show", ref=f"HEAD:{path}").exit_code == 0


@pytest.mark.parametrize("path", ["../outside/secret.txt", "way_out/secret.txt", "/etc/passwd", "", "x\0y"])
def test_paths_stay_inside_the_workspace(repo: Path, tool: GitTool, call: Call, link_out: Path, path: str) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    for command in ("status", "log", "diff", "show", "blame"):
        answer = call(tool, command=command, path=path)
        assert "Failed to resolve path" in answer.output
        assert answer.exit_code == 1


def test_a_folder_that_became_a_link_shows_nothing_from_elsewhere(
    repo: Path, workspace: Workspace, tool: GitTool, call: Call
) -> None:
    commit(repo, "first", {"sub/secret.txt": "public\n"})
    shutil.rmtree(repo / "sub")
    (repo / "sub").symlink_to(workspace.root.parent / "outside")
    outputs = [call(tool, command=command).output for command in ("diff", "status", "show")]
    outputs.append(call(tool, command="blame", path="sub/secret.txt").output)
    assert "-public" in outputs[0]
    assert all("+secret" not in output and ") secret" not in output for output in outputs)


# ---- what may not be read -----------------------------------------------------------------------------------


def limited(scope: ToolScope) -> ToolScope:
    return ToolScope(
        session_id="s", call_id="c", idempotency_key="k", emit=scope.emit, may_read=lambda path: ".env" not in path
    )


@pytest.fixture
def secretive(repo: Path, tool: GitTool, scope: ToolScope) -> Callable[..., ToolOutput]:
    """Calls with a rule against reading `.env`, in a repository whose every commit has changed it."""
    commit(repo, "first", {".env": "KEY=hunter1\n" + "same\n" * 20, "a.txt": "1\n"})
    commit(repo, "second", {".env": "KEY=hunter2\n" + "same\n" * 20, "a.txt": "2\n"})
    return lambda **args: asyncio.run(tool.run(args, limited(scope)))


@pytest.mark.parametrize(
    "args",
    [
        {"command": "show"},
        {"command": "show", "ref": "HEAD~1"},
        {"command": "show", "path": ".env"},
        {"command": "diff", "ref": "HEAD~1"},
        {"command": "diff", "ref": "HEAD~1..HEAD"},
        {"command": "diff", "ref": "HEAD~1", "path": ".env"},
    ],
)
def test_a_patch_leaves_out_what_may_not_be_read(
    repo: Path, secretive: Callable[..., ToolOutput], args: dict[str, str]
) -> None:
    answer = secretive(**args)
    assert "hunter" not in answer.output
    assert answer.output.endswith("[1 file(s) left out: permissions do not let read have them]")
    assert ".env" not in answer.source_anchors
    assert ("a.txt" in answer.source_anchors) == ("path" not in args)


def test_a_file_that_may_not_be_read_is_not_shown_under_another_name_or_command(
    repo: Path, secretive: Callable[..., ToolOutput]
) -> None:
    (repo / ".env").write_text("KEY=hunter3\n" + "same\n" * 20)
    (repo / "link").symlink_to(".env")
    blob = git(repo, "rev-parse", "HEAD:.env")
    commit(repo, "a name that looks like a commit", {".env^{commit}": "hunter4\n"})
    git(repo, "tag", "blobtag", blob)
    refused = [
        secretive(command="blame", path=".env"),
        secretive(command="blame", path="./x/../.env"),
        secretive(command="show", ref="HEAD:.env"),
        secretive(command="show", ref="HEAD~1:./.env"),
        secretive(command="show", ref=":.env"),
        secretive(command="show", ref=blob),
        secretive(command="show", ref="blobtag"),
        secretive(command="log", ref=blob),
        secretive(command="diff", ref="HEAD:.env", target="HEAD~1:.env"),
        secretive(command="diff", ref="HEAD:.env"),
        secretive(command="log", ref="HEAD:.env"),
    ]
    assert all(answer.exit_code == 1 and "hunter" not in answer.output for answer in refused)
    assert "hunter" not in secretive(command="diff").output
    git(repo, "rm", "--quiet", "--cached", ".env")
    (repo / ".env").rename(repo / "plain.txt")
    git(repo, "add", "plain.txt")
    moved = secretive(command="diff").output
    assert "+KEY=hunter3" in moved  # the file as it now is may be read
    assert "hunter2" not in moved


def test_a_patch_that_would_have_to_leave_out_too_much_is_refused(repo: Path, tool: GitTool, scope: ToolScope) -> None:
    commit(repo, "many", {f"{n}.env": f"hunter{n}\n" for n in range(1_001)})
    answer = asyncio.run(tool.run({"command": "show"}, limited(scope)))
    assert answer.output == "permissions keep read from 1001 of the files; narrow it with path"
    assert answer.exit_code == 1


def test_names_are_told_even_of_what_may_not_be_read(repo: Path, secretive: Callable[..., ToolOutput]) -> None:
    (repo / ".env").write_text("other\n")
    assert secretive(command="status").output == "## main\n M .env"
    assert "second" in secretive(command="log", path=".env").output


# ---- hostile repositories -----------------------------------------------------------------------------------


def script(path: Path, marker: Path, then: str = "cat") -> str:
    path.write_text(f"#!/bin/sh\ntouch '{marker}'\n{then}\n")
    path.chmod(0o755)
    return str(path)


FSMONITOR = (("core.fsmonitor", "PROGRAM"),)
CLEAN = (("filter.evil.clean", "PROGRAM"), ("filter.evil.required", "true"))
PROCESS = (("filter.evil.process", "PROGRAM"),)
EXTERNAL = (("diff.external", "PROGRAM"),)
DRIVER = (("diff.evil.command", "PROGRAM"),)
TEXTCONV = (("diff.evil.textconv", "PROGRAM"),)
SIGNED = (("log.showSignature", "true"), ("gpg.program", "PROGRAM"))
TRANSPORT = (
    ("core.repositoryformatversion", "1"),
    ("extensions.partialClone", "origin"),
    ("remote.origin.promisor", "true"),
    ("remote.origin.url", "ext::PROGRAM"),
    ("protocol.ext.allow", "always"),
)


@both
@pytest.mark.parametrize(
    ("settings", "command", "args"),
    [
        (FSMONITOR, "status", {}),
        (FSMONITOR, "diff", {}),
        (CLEAN, "diff", {}),
        (CLEAN, "status", {}),
        (PROCESS, "diff", {}),
        (EXTERNAL, "diff", {}),
        (DRIVER, "diff", {}),
        (TEXTCONV, "diff", {}),
        (TEXTCONV, "show", {}),
        (TEXTCONV, "blame", {"path": "a.txt"}),
        (SIGNED, "log", {}),
        (SIGNED, "show", {}),
        (TRANSPORT, "diff", {"ref": "HEAD~1"}),
    ],
)
def test_no_program_that_a_repository_names_is_run(
    repo: Path,
    workspace: Workspace,
    call: Call,
    tmp_path: Path,
    bwrap: str,
    settings: tuple[tuple[str, str], ...],
    command: str,
    args: dict[str, str],
) -> None:
    marker = repo / "ran"  # what the sandbox could write, if the workspace were open to it
    program = script(repo / "evil", marker, "cat" if settings in (CLEAN, TEXTCONV) else "exit 1")
    commit(repo, "first", {"a.txt": "1\n", "b.txt": "1\n", ".gitattributes": "*.txt filter=evil diff=evil\n"})
    commit(repo, "second", {"a.txt": "2\n"})
    if settings is SIGNED:
        body = git(repo, "cat-file", "commit", "HEAD")
        head, _, words = body.partition("\n\n")
        forged = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n{words}\n"
        git(repo, "reset", "--quiet", git(repo, "hash-object", "-t", "commit", "-w", "--stdin", given=forged.encode()))
    if settings is TRANSPORT:
        blob = git(repo, "rev-parse", "HEAD~1:a.txt")
        (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (repo / "a.txt").write_text("3\n")
    for name, value in settings:
        git(repo, "config", name, value.replace("PROGRAM", program))

    # Plain git obeys: else this test would prove nothing.
    plain = {"diff": ["diff", args.get("ref", "HEAD")], "blame": ["blame", "a.txt"]}.get(command, [command])
    subprocess.run(["git", *plain], cwd=repo, env=PLAIN, capture_output=True, check=False, timeout=20)
    assert marker.exists()
    marker.unlink()
    os.utime(repo / "a.txt", (1, 1))

    answer = call(GitTool(workspace, bwrap=bwrap), command=command, **args)
    assert not marker.exists()
    assert answer.exit_code == (1 if settings is TRANSPORT else 0), answer.output


@both
def test_a_hostile_submodule_is_not_asked_what_it_has_changed(
    repo: Path, workspace: Workspace, call: Call, bwrap: str
) -> None:
    inner, marker = repo / "inner", repo / "ran"
    inner.mkdir()
    git(inner, "init", "--quiet")
    commit(inner, "inside", {"x.txt": "1\n"})
    commit(repo, "with a submodule", {"a.txt": "1\n"})
    (inner / ".git" / "info").mkdir(exist_ok=True)
    (inner / ".git" / "info" / "attributes").write_text("*.txt filter=evil\n")
    git(inner, "config", "filter.evil.clean", script(repo / "evil", marker))
    (inner / "x.txt").write_text("2\n")
    for command in ("status", "diff"):  # plain git obeys
        subprocess.run(["git", command], cwd=repo, env=PLAIN, capture_output=True, check=True)
        assert marker.exists()
        marker.unlink()
    tool = GitTool(workspace, bwrap=bwrap)
    outputs = [call(tool, command=command) for command in ("status", "diff", "show")]
    assert [output.exit_code for output in outputs] == [0, 0, 0]
    assert not marker.exists()


def test_filters_that_cannot_be_switched_off_are_a_reason_to_refuse(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    git(repo, "config", "filter.a=b.clean", "cat")
    answer = call(tool, command="diff")
    assert "has filters that cannot be switched off" in answer.output
    assert answer.exit_code == 1


def test_reading_writes_nothing(repo: Path, tool: GitTool, call: Call) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    os.utime(repo / "a.txt", (1, 1))  # an index that wants to be refreshed

    def state() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in sorted((repo / ".git").rglob("*"))}

    before = state()
    for command in ("status", "diff", "show", "log", "branch"):
        assert call(tool, command=command).exit_code == 0
    assert state() == before
    (repo / ".git" / "index.lock").write_text("")  # as while another git is at work
    assert call(tool, command="status").exit_code == 0


@both
def test_no_other_repository_is_opened(workspace: Workspace, call: Call, tmp_path: Path, bwrap: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    commit(other, "hidden words", {"secret.txt": "hidden content\n"})
    root = workspace.root
    tool = GitTool(workspace, bwrap=bwrap)

    def refused() -> None:
        answer = call(tool, command="log")
        assert "hidden" not in answer.output
        assert answer.output.startswith(f"Not a git repository: {root}")
        assert answer.exit_code == 1

    (root / ".git").write_text(f"gitdir: {other / '.git'}\n")
    refused()
    (root / ".git").unlink()
    (root / ".git").symlink_to(other / ".git")
    refused()
    (root / ".git").unlink()
    git(root, "init", "--quiet")
    for name in ("objects", "refs"):
        shutil.rmtree(root / ".git" / name)
        (root / ".git" / name).symlink_to(other / ".git" / name)
    refused()
    shutil.rmtree(root / ".git")
    git(root, "init", "--quiet")
    (root / ".git" / "commondir").write_text(f"{other / '.git'}\n")
    refused()


def other_repository(folder: Path) -> Path:
    other = folder / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    commit(other, "hidden words", {"secret.txt": "hidden content\n"})
    git(other, "remote", "add", "origin", "https://hidden.example/x")
    return other


def borrow_objects(root: Path, other: Path) -> None:
    (root / ".git/objects/info/alternates").write_text(f"{other / '.git/objects'}\n")


def link_each_object_folder(root: Path, other: Path) -> None:
    for folder in (other / ".git/objects").iterdir():
        if len(folder.name) == 2:
            (root / ".git/objects" / folder.name).symlink_to(folder)
    (root / ".git/refs/heads/main").write_text(git(other, "rev-parse", "HEAD"))


def link_the_packs(root: Path, other: Path) -> None:
    git(other, "repack", "-a", "-d", "--quiet")
    shutil.rmtree(root / ".git/objects/pack")
    (root / ".git/objects/pack").symlink_to(other / ".git/objects/pack")
    (root / ".git/refs/heads/main").write_text(git(other, "rev-parse", "HEAD"))


def link_the_index(root: Path, other: Path) -> None:
    (root / ".git/index").symlink_to(other / ".git/index")


def link_the_branches(root: Path, other: Path) -> None:
    shutil.rmtree(root / ".git/refs/heads")
    (root / ".git/refs/heads").symlink_to(other / ".git/refs/heads")


def link_the_configuration(root: Path, other: Path) -> None:
    (root / ".git/config").unlink()
    (root / ".git/config").symlink_to(other / ".git/config")


@pytest.mark.parametrize(
    "lead",
    [
        borrow_objects,
        link_each_object_folder,
        link_the_packs,
        link_the_index,
        link_the_branches,
        link_the_configuration,
    ],
)
def test_no_part_of_a_repository_is_another_ones(
    repo: Path, tool: GitTool, call: Call, tmp_path: Path, lead: Callable[[Path, Path], None]
) -> None:
    other = other_repository(tmp_path)
    lead(repo, other)
    for args in ({"command": "show", "ref": git(other, "rev-parse", "HEAD")}, {"command": "status"}):
        answer = call(tool, **args)
        assert answer.exit_code == 1
        assert "which is another place" in answer.output or "borrows objects from another one" in answer.output


def test_remotes_are_those_of_the_repository_itself(repo: Path, tool: GitTool, call: Call, tmp_path: Path) -> None:
    git(repo, "config", "include.path", str(other_repository(tmp_path) / ".git/config"))
    assert call(tool, command="remote").output == "[no remote]"


@pytest.mark.parametrize("part", ["packed-refs", "info/attributes", "refs/heads/main"])
def test_a_pipe_in_a_repository_keeps_nobody(repo: Path, tool: GitTool, call: Call, part: str) -> None:
    os.mkfifo(repo / ".git" / part)
    answer = call(tool, command="status")
    assert answer.exit_code == 1
    assert answer.output.endswith("is no regular file)")


def test_rules_for_files_may_lie_elsewhere(repo: Path, tool: GitTool, call: Call, tmp_path: Path) -> None:
    (tmp_path / "exclude").write_text("*.log\n")
    (repo / ".git/info/exclude").unlink(missing_ok=True)
    (repo / ".git/info/exclude").symlink_to(tmp_path / "exclude")
    (repo / "x.log").write_text("")
    assert call(tool, command="status").output == "## No commits yet on main\n[no change]"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that never ends, and a limit of memory")
@pytest.mark.parametrize("setting", ["core.attributesFile", "mailmap.file"])
def test_a_setting_that_names_a_device_is_not_followed(repo: Path, tool: GitTool, call: Call, setting: str) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    git(repo, "config", setting, "/dev/zero")
    for args in ({"command": "status"}, {"command": "blame", "path": "a.txt"}):
        assert call(tool, **args).exit_code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory")
@both
def test_git_has_a_limit_of_memory(repo: Path, workspace: Workspace, call: Call, tmp_path: Path, bwrap: str) -> None:
    program = tmp_path / "git"
    program.write_text('#!/bin/sh\necho "limit $(ulimit -v)" >&2\nexit 1\n')
    program.chmod(0o755)
    if bwrap != NO_BWRAP and tmp_path.is_relative_to("/tmp"):
        pytest.skip("the sandbox hides the program")
    tool = GitTool(workspace, program=str(program), bwrap=bwrap)
    assert f"limit {MOST_MEMORY_KIB}" in call(tool, command="status").output


def test_the_work_tree_is_the_workspace_whatever_the_configuration_says(
    repo: Path, tool: GitTool, call: Call, tmp_path: Path
) -> None:
    commit(repo, "first", {"secret.txt": "mine\n"})
    git(repo, "config", "core.worktree", str(tmp_path / "outside"))
    assert call(tool, command="diff").output == "[no difference]"


def test_linked_work_trees_and_submodules_are_repositories(repo: Path, tmp_path: Path, call: Call) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "--quiet", str(linked))
    (linked / "a.txt").write_text("changed\n")
    assert "+changed" in call(GitTool(Workspace(linked), bwrap=NO_BWRAP), command="diff").output
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(linked), "module")
    assert "first" in call(GitTool(Workspace(repo / "module"), bwrap=NO_BWRAP), command="log").output


@needs_bwrap
def test_a_linked_work_tree_is_read_in_the_sandbox_too(repo: Path, tmp_path: Path, call: Call) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    git(repo, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    answer = call(GitTool(Workspace(tmp_path / "linked")), command="log")
    assert "first" in answer.output


# ---- its process --------------------------------------------------------------------------------------------


def slow_git(workspace: Workspace, folder: Path, then: str, seconds: float = 30.0) -> GitTool:
    """A git that knows no configuration and does `then` for everything else."""
    program = folder / "slow-git"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--name-only*) exit 0;; esac\n{then}\n')
    program.chmod(0o755)
    return GitTool(workspace, str(program), NO_BWRAP, seconds)


def test_cancellation_kills_git_with_all_that_it_started(
    repo: Path, workspace: Workspace, scope: ToolScope, tmp_path: Path, processes_with: Processes
) -> None:
    token = uuid.uuid4().hex
    tool = slow_git(workspace, tmp_path, f"sh -c 'touch {repo}/ready; sleep 300; : {token}' & wait")

    async def cancelled() -> None:
        task = asyncio.create_task(tool.run({"command": "status"}, scope))
        while not (repo / "ready").exists():
            await asyncio.sleep(0.01)
        assert processes_with(token)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    deadline = time.monotonic() + 5
    while processes_with(token) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes_with(token)


def test_a_git_that_does_not_end_is_given_up(repo: Path, workspace: Workspace, call: Call, tmp_path: Path) -> None:
    answer = call(slow_git(workspace, tmp_path, "sleep 300", seconds=0.2), command="status")
    assert (answer.output, answer.exit_code) == ("git status gave up after 0.2 s; narrow it with path or ref", 1)


def test_git_is_ended_as_soon_as_the_page_is_full(repo: Path, workspace: Workspace, call: Call, tmp_path: Path) -> None:
    commit(repo, "first", {"a.txt": "1\n"})
    then = 'case "$*" in *rev-parse*) exec git rev-parse HEAD;; esac\nexec yes word'
    answer = call(slow_git(workspace, tmp_path, then, seconds=20.0), command="diff", max_bytes=256)
    assert answer.output == "word\n" * 51 + "[more follows; continue with byte_offset=255]"


def test_git_says_itself_why_it_failed(repo: Path, workspace: Workspace, call: Call, tmp_path: Path) -> None:
    answer = call(slow_git(workspace, tmp_path, "echo out; echo 'fatal: broken' >&2; exit 128"), command="status")
    assert (answer.output, answer.exit_code) == ("git status failed: fatal: broken", 1)
