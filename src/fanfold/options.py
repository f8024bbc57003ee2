"""SessionOptions: what a caller may set for one session."""

from typing import Any, Literal

import msgspec

from fanfold.contracts.policy import PermissionPolicy
from fanfold.env import HostEnv
from fanfold.errors import UsageError


class SessionOptions(msgspec.Struct, kw_only=True):
    """Fill it by keywords or by attributes; an attribute that does not exist is an error, not a silent typo."""

    model: str | None = None
    """`provider/model-id`; None: the configuration's `default_model`."""
    session_id: str | None = None
    """Also names the fact log's thread. None: a new id."""
    max_parallel_tasks: int | None = None
    max_tool_rounds: int | None = None
    permission_policy: PermissionPolicy | None = None
    approvals: Literal["park", "refuse"] | None = None
    """What a call that needs a person does: `park` (default) waits for `confirm_tool_use`; `refuse` ends the run with
    `ParkedError`, for hosts where nobody can answer. The log stays parked either way."""
    host_env: HostEnv | None = None
    instructions: str | None = None
    """Appended to the system prompt."""
    temperature: float | None = None
    max_output_tokens: int | None = None
    allow_unsandboxed_bash: bool | None = None
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def merged(self, **overrides: Any) -> "SessionOptions":
        """A copy in which every override that is not None wins.

        Raises:
            UsageError: an override is no option.
        """
        unknown = sorted(set(overrides) - set(self.__struct_fields__))
        if unknown:
            raise UsageError(f"unknown session option '{unknown[0]}'; there are: {', '.join(self.__struct_fields__)}")
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, **given)
