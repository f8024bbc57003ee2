"""The changes that `fanfold review` collects: what of them, against what, and what is left out with its reason."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fanfold.cli.review_changes import (
    MAX_FILES,
    MAX_SENT_BYTES,
    Changes,
    collect_changes,
)
from fanfold.cli.review_patches import MAX_PATCH_BYTES, ChangedFile
from fanfold.contracts.codec import encode_json
from fanfold.errors import UsageError
from fanfold.kernel.workflow_meta import parse_args
from fanfold.tools.git_process import MOST_BYTES
from fanfold.tools.sandbox import sandbox_fault
from fanfold.workflow.registry import shipped_scripts

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="git needs a POSIX system"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]
DIRECT = "no-such-program"
SECONDS = count(1_700_000_000)
"""Of the files: git looks into one that seems to be as it was only where its index is no older."""
needs_bwrap = pytest.mark.skipif(sandbox_fault() is not None, reason=f"no sandbox: {sandbox_fault()}")
both = pytest.mark.parametrize("bwrap", [DIRECT, pytest.param("bwrap", marks=needs_bwrap)], ids=["direct", "sandboxed"])
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str, must: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENVIRON, capture_output=True, check=must)
    return done.stdout.decode().strip()


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, times=(next(SECONDS),) * 2)


def commit(folder: Path, message: str = "work") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    return root


def collect(root: Path, path: str = ".", base: str | None = None, bwrap: str = DIRECT) -> Changes:
    return asyncio.run(collect_changes(root, path, base, bwrap=bwrap))


def told(changes: Changes) -> dict[str, str]:
    return {each.path: each.status for each in changes.files}


def by_path(changes: Changes) -> dict[str, ChangedFile]:
    return {each.path: each for each in changes.files}


# ---- what is compared with what -------------------------------------------------------------------------------------


@both
def test_staged_unstaged_and_untracked_work_is_what_is_uncommitted(repo: Path, bwrap: str) -> None:
    write(repo, a_py="one\n", b_py="one\n", gone_py="x\n")
    head = commit(repo)
    write(repo, a_py="two\n", b_py="two\n", sub__new_py="fresh\n")
    git(repo, "add", "a.py")
    (repo / "gone.py").unlink()
    changes = collect(repo, bwrap=bwrap)
    assert told(changes) == {
        "a.py": "modified",
        "b.py": "modified",
        "gone.py": "deleted",
        "sub/new.py": "untracked",
    }
    files = by_path(changes)
    assert files["a.py"].patch.endswith("@@ -1 +1 @@\n-one\n+two\n")
    assert files["gone.py"].patch.endswith("@@ -1 +0,0 @@\n-x\n")
    assert files["sub/new.py"].patch == "@@ -0,0 +1,1 @@\n+fresh\n"
    assert (changes.what, changes.base, changes.summary) == ("uncommitted changes", head, "")


@both
def test_without_uncommitted_work_it_is_the_last_commit(repo: Path, bwrap: str) -> None:
    write(repo, a_py="one\n")
    first = commit(repo, "begin")
    write(repo, a_py="two\n")
    last = commit(repo, "Improve a\n\nBecause.")
    changes = collect(repo, bwrap=bwrap)
    assert told(changes) == {"a.py": "modified"}
    assert changes.what == f"the last commit, {last[:7]} Improve a (nothing is uncommitted)"
    assert (changes.base, changes.summary) == (first, "Improve a\n\nBecause.")


def test_the_first_commit_is_all_new(repo: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo, "begin")
    changes = collect(repo)
    assert (told(changes), changes.base) == ({"a.py": "added"}, None)


def test_before_the_first_commit_all_is_uncommitted(repo: Path) -> None:
    write(repo, a_py="one\n", b_py="two\n")
    git(repo, "add", "a.py")
    write(repo, a_py="changed\n")
    changes = collect(repo)
    assert (told(changes), changes.base) == ({"a.py": "added", "b.py": "untracked"}, None)
    assert "+changed" in by_path(changes)["a.py"].patch


def test_an_empty_repository_has_nothing(repo: Path) -> None:
    assert collect(repo).files == ()


def test_a_merge_is_compared_with_its_first_parent(repo: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo)
    git(repo, "checkout", "--quiet", "-b", "side")
    write(repo, side_py="side\n")
    commit(repo)
    git(repo, "checkout", "--quiet", "main")
    write(repo, main_py="main\n")
    commit(repo)
    git(repo, "merge", "--quiet", "--message", "Merge side", "side")
    changes = collect(repo)
    assert told(changes) == {"side.py": "added"}
    assert changes.summary == "Merge side"


@both
def test_base_is_where_the_branch_began_and_uncommitted_work_counts(repo: Path, bwrap: str) -> None:
    write(repo, a_py="one\n", kept_py="x\n")
    start = commit(repo)
    git(repo, "checkout", "--quiet", "-b", "topic")
    write(repo, a_py="two\n")
    commit(repo, "Second thoughts")
    write(repo, a_py="three\n", new_py="x\n")
    git(repo, "checkout", "--quiet", "main", must=False)
    git(repo, "stash", "--quiet", "--include-untracked")
    git(repo, "checkout", "--quiet", "main")
    write(repo, elsewhere_py="not ours\n")
    commit(repo)
    git(repo, "checkout", "--quiet", "topic")
    git(repo, "stash", "pop", "--quiet")
    changes = collect(repo, base="main", bwrap=bwrap)
    assert told(changes) == {"a.py": "modified", "new.py": "untracked"}
    assert "-one\n+three\n" in by_path(changes)["a.py"].patch
    assert (changes.what, changes.base) == (f"changes since main ({start[:7]})", start)
    assert changes.summary == "Second thoughts"


def test_nothing_since_base_is_nothing(repo: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo)
    assert collect(repo, base="HEAD").files == ()


@pytest.mark.parametrize("base", ["nowhere", "--output=x", "HEAD:a.py", "", "a\nb"])
def test_a_base_that_is_none_is_refused(repo: Path, base: str) -> None:
    commit(repo)
    with pytest.raises(UsageError, match="is no commit, branch or tag of this repository"):
        collect(repo, base=base)
    assert not (repo / "x").exists()


def test_a_base_without_a_common_commit_is_refused(repo: Path) -> None:
    commit(repo)
    git(repo, "checkout", "--quiet", "--orphan", "other")
    commit(repo, "another beginning")
    with pytest.raises(UsageError, match="main and HEAD have no commit in common"):
        collect(repo, base="main")


def test_the_last_commit_of_a_shallow_clone_is_not_taken_for_the_first(repo: Path, tmp_path: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo)
    write(repo, a_py="two\n")
    commit(repo)
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repo}", "shallow")
    with pytest.raises(UsageError, match="git fetch --deepen 1"):
        collect(tmp_path / "shallow")


def test_a_long_history_is_summed_up_in_part(repo: Path) -> None:
    start = commit(repo)
    for number in range(3):
        commit(repo, f"{number} " + "x" * 2_000)
    summary = collect(repo, base=start).summary
    assert summary.startswith("2 xxx")
    assert summary.endswith("x …")
    assert len(summary) < 4_100


# ---- where --------------------------------------------------------------------------------------------------------


@both
def test_a_folder_of_a_repository_is_a_workspace_of_its_own(repo: Path, bwrap: str) -> None:
    write(repo, a_py="one\n", sub__b_py="one\n")
    commit(repo)
    write(repo, a_py="two\n", sub__b_py="two\n", sub__deep__new_py="x\n", other__new_py="x\n")
    assert told(collect(repo / "sub", bwrap=bwrap)) == {"b.py": "modified", "deep/new.py": "untracked"}


@pytest.mark.parametrize("path", ["sub", "sub/", "./sub", "sub/../sub"])
def test_a_path_limits_the_review(repo: Path, path: str) -> None:
    write(repo, a_py="one\n", sub__b_py="one\n")
    commit(repo)
    write(repo, a_py="two\n", sub__b_py="two\n", sub__new_py="x\n", suburb_py="x\n")
    assert set(told(collect(repo, path))) == {"sub/b.py", "sub/new.py"}
    assert set(told(collect(repo, "sub/b.py"))) == {"sub/b.py"}


def test_a_path_is_no_pattern(repo: Path) -> None:
    write(repo, a_py="one\n")
    (repo / "*.py").write_text("one\n")
    assert set(told(collect(repo, "*.py"))) == {"*.py"}


def test_the_last_commit_of_a_path_is_the_last_one_that_touched_it(repo: Path) -> None:
    write(repo, a_py="one\n", b_py="one\n")
    commit(repo)
    write(repo, a_py="two\n")
    commit(repo, "a again")
    write(repo, b_py="two\n")
    commit(repo, "b again")
    write(repo, b_py="three\n")  # what is uncommitted elsewhere does not matter
    changes = collect(repo, "a.py")
    assert (told(changes), changes.summary) == ({"a.py": "modified"}, "a again")
    assert changes.what.startswith("the last commit below a.py, ")
    assert changes.what.endswith(" a again (nothing is uncommitted there)")


def test_a_path_that_is_gone_can_be_reviewed_and_one_that_never_was_cannot(repo: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo)
    (repo / "a.py").unlink()
    assert told(collect(repo, "a.py")) == {"a.py": "deleted"}
    with pytest.raises(UsageError, match=r"there is no 'b\.py' here, and no change of it"):
        collect(repo, "b.py")


def test_a_path_outside_of_the_workspace_is_refused(repo: Path) -> None:
    commit(repo)
    (repo / "away").symlink_to(repo.parent)
    for path in ("../x", "..", "/", "away/x"):
        with pytest.raises(UsageError, match="lies outside of the workspace"):
            collect(repo, path)


def test_a_path_may_be_absolute_and_lead_through_links(repo: Path) -> None:
    write(repo, a_py="x\n", sub__b_py="x\n")
    (repo / "inner").symlink_to("sub")
    (repo.parent / "outer").symlink_to(repo)
    for path in (repo / "sub", repo.parent / "outer" / "sub", "inner/b.py"):
        assert set(told(collect(repo.parent / "outer", str(path)))) == {"sub/b.py"}
    assert set(told(collect(repo, str(repo / "inner")))) == {"inner"}


def test_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Not a git repository"):
        collect(tmp_path)


def test_without_git_it_says_so(repo: Path) -> None:
    with pytest.raises(UsageError, match="install git"):
        asyncio.run(collect_changes(repo, program="no-such-git"))


# ---- files of every kind --------------------------------------------------------------------------------------------


@both
def test_each_patch_belongs_to_its_file_whatever_its_name(repo: Path, bwrap: str) -> None:
    names = ["plain", "with space", "tab\there", "line\nend", 'quote"d', "back\\slash", "größe", "a b/a b", "\x01\x7f"]
    for name in names:
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text("old\n")
    commit(repo)
    for name in names:
        (repo / name).write_text(f"new {names.index(name)}\n")
    files = by_path(collect(repo, bwrap=bwrap))
    assert len(files) == len(names)
    for number, name in enumerate(names):
        shown = "".join(char if char.isprintable() else "?" for char in name)
        assert files[shown].patch.endswith(f"-old\n+new {number}\n")


def test_renames_modes_and_links_have_their_patches(repo: Path) -> None:
    write(repo, old_py="".join(f"{number}\n" for number in range(50)), mode_py="x\n", z_py="one\n")
    (repo / "link").symlink_to("z.py")
    commit(repo)
    git(repo, "mv", "old.py", "new.py")
    (repo / "mode.py").chmod(0o755)
    (repo / "link").unlink()
    write(repo, link="a file\n", z_py="two\n")
    files = by_path(collect(repo))
    assert {path: each.status for path, each in files.items()} == {
        "link": "of another type",
        "mode.py": "modified",
        "new.py": "renamed from old.py",
        "z.py": "modified",
    }
    assert "new mode 100755" in files["mode.py"].patch
    assert "rename to new.py" in files["new.py"].patch
    assert "-z.py\n" in files["link"].patch
    assert "+a file\n" in files["link"].patch
    assert files["z.py"].patch.endswith("-one\n+two\n")


def test_a_file_that_is_only_meant_to_be_added_is_shown(repo: Path) -> None:
    commit(repo)
    write(repo, a_py="one\n")
    git(repo, "add", "--intent-to-add", "a.py")
    assert by_path(collect(repo))["a.py"].patch.endswith("+one\n")


def test_lines_that_look_like_headers_stay_in_their_patch(repo: Path) -> None:
    write(repo, a_py="x\n", b_py="x\n")
    commit(repo)
    write(repo, a_py="diff --git a/b.py b/b.py\n@@ -1 +1 @@\nBinary files a and b differ\n", b_py="y\n")
    files = by_path(collect(repo))
    assert "+diff --git a/b.py b/b.py\n+@@ -1 +1 @@\n+Binary files" in files["a.py"].patch
    assert files["b.py"].patch.endswith("-x\n+y\n")


def test_a_conflict_is_shown_with_its_marks(repo: Path) -> None:
    write(repo, a_py="one\n", b_py="one\n")
    commit(repo)
    git(repo, "checkout", "--quiet", "-b", "side")
    write(repo, a_py="side\n")
    commit(repo)
    git(repo, "checkout", "--quiet", "main")
    write(repo, a_py="main\n", b_py="main\n")
    commit(repo)
    write(repo, b_py="more\n")
    git(repo, "merge", "--quiet", "side", must=False)
    files = by_path(collect(repo))
    assert "+<<<<<<< HEAD\n" in files["a.py"].patch
    assert files["b.py"].patch.endswith("-main\n+more\n")


@both
def test_binary_and_large_files_are_listed_and_not_sent(repo: Path, bwrap: str) -> None:
    large = "x" * 99 + "\n"
    write(repo, tracked_bin=b"\0one", tracked_large="x\n", small_py="one\n")
    commit(repo)
    write(repo, tracked_bin=b"\0two", tracked_large=large * 2_100, small_py="two\n")
    write(repo, new_bin=b"\0new", new_large=large * 2_100)
    os.mkfifo(repo / "pipe")
    (repo / "link").symlink_to("/etc/passwd")
    files = by_path(collect(repo, bwrap=bwrap))
    assert {path: each.left_out for path, each in files.items()} == {
        "link": "no regular file",
        "new_bin": "binary",
        "new_large": f"larger than {MAX_PATCH_BYTES:,} bytes",
        "small.py": None,
        "tracked_bin": "binary",
        "tracked_large": f"larger than {MAX_PATCH_BYTES:,} bytes",
    }
    assert [path for path, each in files.items() if each.patch] == ["small.py"]
    assert files["new_bin"].sent() == {"path": "new_bin", "status": "untracked; binary", "patch": "", "is_cut": True}


def test_what_stands_behind_an_enormous_patch_is_still_found(repo: Path) -> None:
    line = "x" * 99 + "\n"
    enormous = line * (MOST_BYTES // 100 + 10)
    write(repo, a_py="one\n", b_py=enormous, sub__c_py="one\n", sub__d_py=enormous, sub__e_py="one\n")
    commit(repo)
    other = enormous.replace("x", "y")
    write(repo, a_py="two\n", b_py=other, sub__c_py="two\n", sub__d_py=other, sub__e_py="two\n")
    for root, names in (
        (repo, ["a.py", "b.py", "sub/c.py", "sub/d.py", "sub/e.py"]),
        (repo / "sub", ["c.py", "d.py", "e.py"]),
    ):
        files = collect(root).files
        assert [each.path for each in files] == names
        assert [each.left_out is not None for each in files] == [each[-4] in "bd" for each in names]
        assert all(each.patch.endswith("+two\n") for each in files if each.left_out is None)


def test_too_many_files_are_refused(repo: Path) -> None:
    for number in range(MAX_FILES + 1):
        (repo / f"{number}.txt").write_text("x")
    with pytest.raises(UsageError, match=f"{MAX_FILES + 1} files have changed"):
        collect(repo)
    git(repo, "add", "--all")
    with pytest.raises(UsageError, match=f"{MAX_FILES + 1} files have changed"):
        collect(repo)


def test_our_own_records_are_no_change_and_definitions_are(repo: Path) -> None:
    for name in ("sessions/s.json", "workflow-runs/r.json", "agents/a.md", "workflows/w.py"):
        (repo / ".a3s" / name).parent.mkdir(parents=True)
        (repo / ".a3s" / name).write_text("x\n")
    assert set(told(collect(repo))) == {".a3s/agents/a.md", ".a3s/workflows/w.py"}


def test_the_report_of_an_earlier_review_is_no_change(repo: Path) -> None:
    write(repo, a_py="one\n")
    commit(repo, "begin")
    write(repo, report_md="found\n")
    changes = asyncio.run(collect_changes(repo, report=repo / "report_md"))
    assert told(changes) == {"a.py": "added"}


def test_text_in_another_encoding_is_sent_as_far_as_it_can_be_read(repo: Path) -> None:
    write(repo, a_py=b"caf\xe9\n", b_py="x\r\ny")
    files = by_path(collect(repo))
    assert files["a.py"].patch == "@@ -0,0 +1,1 @@\n+caf\ufffd\n"
    assert files["b.py"].patch == "@@ -0,0 +1,2 @@\n+x\r\n+y\n"


def test_an_empty_new_file_is_listed(repo: Path) -> None:
    write(repo, a_py="")
    assert by_path(collect(repo))["a.py"].patch == "@@ -0,0 +1,0 @@\n"


# ---- as arguments ---------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_listed_and_not_sent(repo: Path) -> None:
    write(repo, a_py="one\n", secret="key\n")
    files = by_path(collect(repo).sendable(lambda path: path != "secret"))
    assert files["secret"].left_out == "permissions keep it from being read"
    assert (files["secret"].patch, files["a.py"].left_out) == ("", None)


@pytest.mark.parametrize("text", ["x", "\x01", "é", '"'])
def test_all_that_is_sent_fits_into_the_arguments_of_a_workflow(text: str) -> None:
    patch = text * (MAX_PATCH_BYTES // len(text.encode()))
    changes = Changes(
        "", None, "s" * 4_000, tuple(ChangedFile(f"{number}.py", "modified", patch) for number in range(50))
    )
    sent = changes.sendable(lambda path: True)
    reasons = [each.left_out for each in sent.files]
    assert None in reasons or text == "\x01"
    assert "the change is too large as a whole" in reasons
    assert len(encode_json(sent.args())) < MAX_SENT_BYTES + 20_000
    parse_args(sent.args(), shipped_scripts()["review-changes"].meta, 1_048_576)


def test_a_small_file_behind_a_large_one_is_still_sent() -> None:
    files = [ChangedFile(f"{number}.py", "modified", "x" * MAX_PATCH_BYTES) for number in range(6)]
    sent = Changes("", None, "", (*files, ChangedFile("small.py", "modified", "x"))).sendable(lambda path: True)
    assert [each.left_out is None for each in sent.files] == [True, True, True, True, False, False, True]


@both
def test_a_hostile_repository_runs_nothing(repo: Path, bwrap: str) -> None:
    write(repo, a_py="one\n")
    (repo / ".gitattributes").write_text("*.py diff=evil filter=evil\n")
    commit(repo)
    run: Callable[[str], str] = lambda name: f"touch {repo.parent / name}; cat"  # noqa: E731
    for key in ("diff.evil.command", "diff.evil.textconv", "filter.evil.clean", "core.fsmonitor", "diff.external"):
        git(repo, "config", key, run(key))
    write(repo, a_py="two\n")
    before = sorted(os.listdir(repo.parent))
    assert told(collect(repo, bwrap=bwrap)) == {"a.py": "modified"}
    assert sorted(os.listdir(repo.parent)) == before
