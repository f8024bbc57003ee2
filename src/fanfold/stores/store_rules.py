"""What every session store refuses in the same words, whatever it keeps its records in."""

from collections.abc import Sequence

from fanfold.errors import LifecycleError, StoreConflictError, UsageError


def require_records(log: str, records: Sequence[bytes]) -> None:
    """Raises UsageError when one of `records` is not one line of bytes."""
    for place, record in enumerate(records):
        if not isinstance(record, bytes) or b"\n" in record:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"record {place} for '{log}' was not written: it must be bytes without a newline")


def require_data(document: str, data: bytes | None) -> None:
    """Raises UsageError when `data` is no bytes."""
    if data is not None and not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"document '{document}' was not written: its data must be bytes")


def require_place(name: str, expected: int, actual: int) -> None:
    """Raises StoreConflictError when `name` is not where its writer expects it."""
    if expected != actual:
        raise StoreConflictError(name=name, expected=expected, actual=actual)


def used_after_close() -> LifecycleError:
    return LifecycleError("the session store is closed; open another one to go on")
