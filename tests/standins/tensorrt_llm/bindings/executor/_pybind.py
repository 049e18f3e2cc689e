"""What pybind11 does with arguments: unknown or wrong ones are TypeError, right ones become C++ values."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Cast = Callable[[Any], Any]
"""Function that makes a C++ value of a Python one. Raises TypeError where pybind11 has no overload."""

REQUIRED: Any = object()


@dataclass(frozen=True)
class Arg:
    name: str
    cast: Cast
    default: Any = REQUIRED


def bind(function: str, args: Sequence[Arg], keyword_only: int, given: Any, named: Any) -> dict[str, Any]:
    """Return the value of each argument; those from index ``keyword_only`` on are given by name alone."""
    by_name = {arg.name: arg for arg in args}
    if len(given) > keyword_only:
        raise _incompatible(function, f"{len(given)} positional arguments")
    values: dict[str, Any] = {}
    positional = dict(zip(by_name, given, strict=False))
    for name, value in [*positional.items(), *named.items()]:
        if name not in by_name or name in values:
            raise _incompatible(function, f"argument {name!r}")
        try:
            values[name] = by_name[name].cast(value)
        except TypeError as exc:
            raise _incompatible(function, f"{name}={value!r}") from exc
    for arg in args:
        if arg.name not in values:
            if arg.default is REQUIRED:
                raise _incompatible(function, f"{arg.name} is missing")
            values[arg.name] = arg.default() if isinstance(arg.default, type) else arg.default
    return values


def _incompatible(function: str, what: str) -> TypeError:
    kind = "constructor" if function.endswith("__init__") else "function"
    return TypeError(f"{function}(): incompatible {kind} arguments. Invoked with: {what}")


class Bound:
    """A bound C++ class: its constructor's arguments are its properties.

    ``ARGS`` is the constructor; ``KEYWORD_ONLY`` the number of arguments that may be positional;
    ``READ_ONLY`` says that properties have no setter; ``EXTRA`` are properties that only have one.
    """

    ARGS: ClassVar[tuple[Arg, ...]] = ()
    POSITIONAL: ClassVar[int | None] = None
    READ_ONLY: ClassVar[bool] = False
    EXTRA: ClassVar[tuple[Arg, ...]] = ()
    __slots__ = ("_values",)

    def __init_subclass__(cls) -> None:
        for arg in (*cls.ARGS, *cls.EXTRA):
            setattr(cls, arg.name, _property(arg, is_read_only=cls.READ_ONLY))

    def __init__(self, *given: Any, **named: Any) -> None:
        name = f"{type(self).__name__}.__init__"
        count = len(self.ARGS) if self.POSITIONAL is None else self.POSITIONAL
        self._values: dict[str, Any] = {each.name: each.default for each in self.EXTRA}
        self._values |= bind(name, self.ARGS, count, given, named)
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_values" and not hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__setattr__(name, value)

    def check(self) -> None:
        """Raise RuntimeError where the C++ constructor throws."""


def _property(arg: Arg, *, is_read_only: bool) -> property:
    def get(self: Bound) -> Any:
        return self._values[arg.name]

    def change(self: Bound, value: Any) -> None:
        self._values[arg.name] = arg.cast(value)

    return property(get, None if is_read_only else change)


def check(condition: bool, text: str) -> None:
    """TLLM_CHECK."""
    if not condition:
        raise RuntimeError(f"[TensorRT-LLM][ERROR] Assertion failed: {text}")


def integer(low: int, high: int) -> Cast:
    def cast(value: Any) -> int:
        number = operator.index(value)  # A float is no integer here, whatever its value.
        if not low <= number <= high:
            raise TypeError(value)
        return number

    return cast


i32 = integer(-(1 << 31), (1 << 31) - 1)
u64 = integer(0, (1 << 64) - 1)


def f32(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError(value)
    return float(value)


def boolean(value: Any) -> bool:
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(value)
    return bool(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def path(value: Any) -> str:
    return str(os.fspath(value))


def tensor(value: Any) -> Any:
    if not any(f"{kind.__module__}.{kind.__name__}" == "torch.Tensor" for kind in type(value).__mro__):
        raise TypeError(value)
    return value


def instance(*kinds: type) -> Cast:
    def cast(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(value)
        return value

    return cast


def optional(inner: Cast) -> Cast:
    return lambda value: None if value is None else inner(value)


def list_of(inner: Cast) -> Cast:
    def cast(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__"):
            raise TypeError(value)
        return [inner(each) for each in value]

    return cast
