"""Long outputs: bounded for the model, whole on disk, readable again."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.messages import ToolOutput
from fanfold.tools.artifacts import MAX_ARTIFACT_BYTES, MAX_OUTPUT_BYTES, Capture, artifact_path, bounded
from fanfold.tools.workspace import Workspace


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("artifacts"))


def drafts(workspace: Workspace) -> list[Path]:
    return list((workspace.root / ".a3s" / "artifacts").glob(".draft-*"))


@given(sizes=st.lists(st.integers(0, 70_000), max_size=8))
def test_a_capture_keeps_both_ends_and_the_whole(shared: Workspace, sizes: list[int]) -> None:
    pieces = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    whole = b"".join(pieces)
    with Capture(shared) as capture:
        for piece in pieces:
            capture.write(piece)
        output, uri = capture.finish("bash")
    assert len(output.encode()) <= MAX_OUTPUT_BYTES
    assert drafts(shared) == []
    if uri is None:
        assert output.encode() == whole
    else:
        head, mark, tail = output.split("\n")
        assert whole.startswith(head.encode())
        assert whole.endswith(tail.encode())
        assert f"[... {len(whole) - len(head) - len(tail)} bytes left out; the whole output: read {uri} " in mark
        path = artifact_path(shared, uri)
        assert path is not None
        assert path.read_bytes() == whole
        assert path.name == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("filler", ["é", "\0", "\ufffd", "𝄞"])
def test_binary_noise_and_wide_characters_do_not_outgrow_the_limit(workspace: Workspace, filler: str) -> None:
    for data in (filler.encode() * 200_000, b"x" + filler.encode() * 200_000, b"\xff" * 300_000):
        with Capture(workspace) as capture:
            capture.write(data)
            output, _ = capture.finish("bash")
        assert len(output.encode()) <= MAX_OUTPUT_BYTES


def test_an_artifact_has_an_upper_bound_and_says_so(workspace: Workspace) -> None:
    with Capture(workspace) as capture:
        for _ in range(17):
            capture.write(b"x" * 1024 * 1024)
        output, uri = capture.finish("bash")
    assert uri is not None
    path = artifact_path(workspace, uri)
    assert path is not None
    assert path.stat().st_size == MAX_ARTIFACT_BYTES
    assert f"holds the first {MAX_ARTIFACT_BYTES} bytes" in output


def test_an_unfinished_capture_leaves_no_file(workspace: Workspace) -> None:
    with Capture(workspace) as capture:
        capture.write(b"x" * 300_000)
        assert len(drafts(workspace)) == 1
    assert drafts(workspace) == []


def test_what_cannot_be_kept_is_still_shown_and_said(workspace: Workspace, link_out: Path) -> None:
    (workspace.root / ".a3s").symlink_to(link_out)
    answer = bounded(workspace, "search", ToolOutput(output="x" * 300_000))
    assert answer.artifact is None
    assert "not kept: Failed to resolve path" in answer.output
    assert [p.name for p in link_out.iterdir()] == ["secret.txt"]


def test_short_answers_pass_untouched(workspace: Workspace) -> None:
    answer = ToolOutput(output="x" * 100_000, source_anchors=("a",))
    assert bounded(workspace, "read", answer) is answer
    assert not (workspace.root / ".a3s").exists()
