"""A session store from its making to its end: context managers, and a word about one that nobody closed."""

import warnings
from typing import Self

from fanfold.stores.store_rules import used_after_close


class StoreLife:
    """A store sets `_is_closed` to False once it is made, and fills in how it ends."""

    _is_closed = True

    async def close(self) -> None:
        raise NotImplementedError

    def _close_now(self) -> None:
        """As `close`, blocking; closing twice does nothing more."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """As `_close_now`, but waits for no thread: at the interpreter's exit it may be gone."""
        self._close_now()

    def _leases_held(self) -> list[str]:
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._is_closed:
            raise used_after_close()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_now()

    async def __aenter__(self) -> Self:
        self._require_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._is_closed:
            return
        held = self._leases_held()
        self._let_go()
        if held:
            message = f"a session store was dropped with the lease of '{held[0]}'; close it, or use it in a with block"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
