"""Pieces that are taken once, one after the other: what `SideBySide` and `Outlined` are to those who iterate."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Generic, Self, TypeVar

Piece = TypeVar("Piece")


class TakenPieces(ABC, Generic[Piece]):
    """An iterator that several threads may take from, and a context manager that closes it."""

    def __init__(self) -> None:
        self._pieces = self._generated()
        self._lock = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        with self._lock:
            return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop, and release everything."""

    @abstractmethod
    def _generated(self) -> Generator[Piece, None, None]:
        """The pieces, generated in the thread of whoever takes them."""
