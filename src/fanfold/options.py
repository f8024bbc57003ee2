"""SessionOptions: what a caller may set for one session."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanfold.contracts.policy import PermissionPolicy
from fanfold.env import HostEnv
from fanfold.errors import UsageError
from fanfold.protocols import SessionStore


class SessionOptions(msgspec.Struct, kw_only=True):
    """Fill it by keywords or by attributes; an attribute that does not exist is an error, not a silent typo."""

    model: str | None = None
    """`provider/model-id`; None: the configuration's `default_model`."""
    session_id: str | None = None
    """Also names the fact log's thread. None: a new id."""
    max_parallel_tasks: Annotated[int, Meta(ge=1)] | None = None
    max_tool_rounds: Annotated[int, Meta(ge=0)] | None = None
    permission_policy: PermissionPolicy | None = None
    approvals: Literal["park", "refuse"] | None = None
    """What a call that needs a person does: `park` (default) waits for `confirm_tool_use`; `refuse` ends the run with
    `ParkedError`, for hosts where nobody can answer. The log stays parked either way."""
    session_store: SessionStore | None = None
    """Where resumable calls keep what is finished. It stays the caller's to close."""
    host_env: HostEnv | None = None
    stream_partials: bool | None = None
    """Stream the answers of steps with an `output_schema`, so that the listener of their call hears a
    `structured_partial` event, with what is there of the value, while it arrives."""
    instructions: str | None = None
    """Appended to the system prompt."""
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    allow_unsandboxed_bash: bool | None = None
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def merged(self, **overrides: Any) -> "SessionOptions":
        """A copy in which every override that is not None wins, with every value checked.

        Raises:
            UsageError: an override is no option, or a value is none that its option can have.
        """
        unknown = sorted(set(overrides) - set(self.__struct_fields__))
        if unknown:
            raise UsageError(f"unknown session option '{unknown[0]}'; there are: {', '.join(self.__struct_fields__)}")
        given = {name: value for name, value in overrides.items() if value is not None}
        if isinstance(given.get("session_store"), type) or isinstance(self.session_store, type):
            raise UsageError("session option session_store: it is a class, not a store such as FileSessionStore(dir)")
        merged = msgspec.structs.replace(self, **given)
        values = {name: getattr(merged, name) for name in merged.__struct_fields__}
        try:
            return msgspec.convert(values, SessionOptions)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at ")
            raise UsageError(f"session option {place.strip('`').removeprefix('$.')}: {reason}") from None
