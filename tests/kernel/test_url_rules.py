"""URLs have one spelling, in which rules judge them and tools fetch them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import Decision, PermissionPolicy
from fanfold.kernel.permissions import decide_permission, matched_text
from fanfold.kernel.url import MAX_URL_CHARACTERS, normal_url, url_fault

FETCH = ToolSpec(name="web_fetch", description="", parameters={})
GIT = ToolSpec(name="git", description="", parameters={}, is_read_only=True)


def decide(policy: PermissionPolicy, url: str) -> Decision:
    return decide_permission(policy, FETCH, {"url": url})[0]


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://Docs.Python.org", "https://docs.python.org/"),
        ("https://docs.python.org:443/#top", "https://docs.python.org/"),
        ("http://x.org:80?y=1", "http://x.org/?y=1"),
        ("http://x.org:8080/a", "http://x.org:8080/a"),
        ("https://x.org./a/./b/../c", "https://x.org/a/c"),
        ("https://x.org/..", "https://x.org/"),
        ("https://x.org/a/..", "https://x.org/"),
        ("https://x.org/%70rivate/%2e%2e/%7Eme", "https://x.org/~me"),
        ("https://x.org/a%2fb%20c?q=a b&r=%C3%bc", "https://x.org/a%2Fb%20c?q=a%20b&r=%C3%BC"),
        ("https://x.org/100%/%zz", "https://x.org/100%25/%25zz"),
        ("https://x.org/ü", "https://x.org/%C3%BC"),
        ("https://ｄocs.Bücher.de/", "https://docs.xn--bcher-kva.de/"),
        ("http://[::1]:80/x", "http://[::1]/x"),
        ("https://x.org//a//../b", "https://x.org//a/b"),
        ("https://me:p\\w@x.org/", "https://me:p%5Cw@x.org/"),
    ],
)
def test_a_url_has_one_spelling(url: str, normal: str) -> None:
    assert normal_url(url) == normal


@pytest.mark.parametrize(
    "url",
    ["", "x.org/a", "ftp://x.org/", "https:///a", "http://[x/", "http://x:99999/", "https://x.org/\ud800", "file:///a"],
)
def test_what_is_no_url_of_the_web_is_given_back(url: str) -> None:
    assert normal_url(url) == url


def test_a_url_without_end_is_given_back() -> None:
    url = "https://x.org/" + "a" * MAX_URL_CHARACTERS
    assert normal_url(url) == url


@given(
    st.text(alphabet="/.%2eEfF@:\\?#[]aü \t-", max_size=30), st.sampled_from(["http://x.org", "https://", "HTTP://X"])
)
def test_spelling_it_again_changes_nothing(rest: str, start: str) -> None:
    once = normal_url(start + rest)
    assert normal_url(once) == once
    if url_fault(once) is None:
        assert "/../" not in once.partition("?")[0]


def test_a_pattern_is_compared_with_the_normal_url() -> None:
    assert matched_text("web_fetch", {"url": "HTTPS://X.org/a#b"}) == "https://x.org/a"
    assert matched_text("web_fetch", {}) == ""


DOCS = PermissionPolicy(allow=("web_fetch(https://docs.python.org/**)",))


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.python.org/3/library/",
        "https://docs.python.org",
        "HTTPS://DOCS.python.org:443/3",
        "https://docs.python.org./",
    ],
)
def test_a_rule_for_a_host_allows_every_page_of_it(url: str) -> None:
    assert decide(DOCS, url) == "allow"


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.python.org.evil.com/",
        "https://docs.python.org@evil.com/",
        "https://docs.python.org:x@evil.com/",
        "https://docs.python.org\\@evil.com/",
        "https://docs.python.org%2F@evil.com/",
        "https://evil.com/docs.python.org/",
        "https://evil.com/https://docs.python.org/",
        "https://evil.com\\docs.python.org/",
        "https://evil.com#https://docs.python.org/",
        "https://docs.python.org:8443/",
        "http://docs.python.org/",
        "https://me@docs.python.org/",
        "https:docs.python.org/3",
        "docs.python.org/3",
    ],
)
def test_a_rule_for_a_host_allows_nothing_that_only_looks_like_it(url: str) -> None:
    assert decide(DOCS, url) == "ask"


@pytest.mark.parametrize(
    "rule",
    [
        "https://Docs.Python.ORG",
        "https://docs.python.org:*",
        "https://docs.python.org/**",
        "https://*.python.org",
        "HTTPS://docs.python.org/:*",
    ],
)
def test_a_rule_may_name_the_host_alone_and_in_any_case(rule: str) -> None:
    policy = PermissionPolicy(allow=(f"web_fetch({rule})",))
    assert decide(policy, "https://docs.python.org/3/") == "allow"
    for evil in ("https://docs.python.org.evil.com/", "https://evil.com/.python.org/", "https://evil.com?.python.org/"):
        assert decide(policy, evil) == "ask"


@pytest.mark.parametrize(
    "url",
    [
        "https://x.org/private/a",
        "https://X.org:443/private/a",
        "https://x.org/%70rivate/a",
        "https://x.org/public/../private/a",
        "https://x.org/public/%2E%2e/private/a",
        "https://x.org./private/a#public",
    ],
)
def test_another_spelling_does_not_slip_past_a_deny_rule(url: str) -> None:
    policy = PermissionPolicy(allow=("web_fetch",), deny=("web_fetch(https://x.org/private/**)",))
    assert decide(policy, url) == "deny"
    assert decide(policy, "https://x.org/public/private/a") == "allow"


def test_without_a_rule_a_fetch_needs_an_approval_and_git_none() -> None:
    assert decide(PermissionPolicy(), "https://x.org/") == "ask"
    assert decide_permission(PermissionPolicy(), GIT, {"command": "log"})[0] == "allow"


def test_rules_for_git_are_about_its_command_and_what_follows() -> None:
    assert matched_text("git", {"command": "diff", "path": "a", "ref": "HEAD~1"}) == "diff HEAD~1 a"
    policy = PermissionPolicy(deny=("git(blame:*)", "git(log secret/**)"))
    assert decide_permission(policy, GIT, {"command": "blame", "path": "a"})[0] == "deny"
    assert decide_permission(policy, GIT, {"command": "log", "path": "./x/../secret/a"})[0] == "deny"
    assert decide_permission(policy, GIT, {"command": "log", "path": "a"})[0] == "allow"
