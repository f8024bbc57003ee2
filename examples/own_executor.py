"""Steps on an executor of your own: here a thread that makes a digest, elsewhere another machine."""

import asyncio
import hashlib
import tempfile

from fanfold import AgentStepSpec, FileSessionStore, StepOutcome, Usage, execute_steps_parallel_resumable
from fanfold.protocols import EventSink


class DigestExecutor:
    """Anything with these two methods is an `AgentExecutor`."""

    def concurrency_hint(self) -> int:
        return 4

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        digest = await asyncio.to_thread(hashlib.sha256, spec.prompt.encode())
        usage = Usage(total_tokens=len(spec.prompt))
        return StepOutcome(
            task_id=spec.task_id, agent=spec.agent, output=digest.hexdigest()[:8], success=True, usage=usage
        )


async def main() -> None:
    specs = [{"task_id": word, "agent": "any", "prompt": word} for word in ("fan", "out", "fold")]
    with tempfile.TemporaryDirectory() as directory, FileSessionStore(directory) as store:
        outcomes = await execute_steps_parallel_resumable(DigestExecutor(), specs, "digests", store)
    print({outcome.task_id: outcome.output for outcome in outcomes})


asyncio.run(main())
