"""Copying of bytes inside compiled loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from numba.core import cgutils, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.protocol.kernels import Octets


def _copy_bytes(
    _: Any, target: Any, target_start: Any, source: Any, source_start: Any, size: Any
) -> tuple[Any, Any]:
    """The types of a copy for numba, and what writes its code."""
    signature = types.void(target, target_start, source, source_start, size)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = [
            context.cast(builder, arguments[index], signature.args[index], types.intp) for index in (1, 3, 4)
        ]
        arrays = [
            context.make_array(signature.args[index])(context, builder, arguments[index]) for index in (0, 2)
        ]
        places = [builder.gep(array.data, [start]) for array, start in zip(arrays, numbers[:2], strict=True)]
        cast("Any", cgutils).raw_memcpy(builder, *places, numbers[2], 1)
        return context.get_dummy_value()

    return signature, generate


copy_bytes = cast("Callable[[Octets, int, Octets, int, int], None]", intrinsic(_copy_bytes))
"""Copy bytes as memcpy does: into an array, from a position on, out of another array and position, so many.

Nothing is checked. A loop over bytes is several times slower: for all the compiler knows the arrays overlap.
"""
