"""Floating point operations that a model needs, by formula from its shape; analytic, so never called measured.

Language models: PaLM, arXiv 2204.02311, appendix B (6 N + 12 L H Q T per trained token, without recomputation; causal
masking does not halve the attention term, by that convention). Video transformers: dense 2 N S b and attention
4 L S^2 d b per forward, for S tokens, width d, L layers and batch b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleetcraft.core.errors import UsageError


def transformer_train(*, parameters: float, layers: int, heads: int, head_width: int, context: int) -> float:
    """FLOPs per trained token, forward and backward. Of a mixture of experts `parameters` are the active ones."""
    return 6 * parameters + 12 * layers * heads * head_width * context


def transformer_infer(*, parameters: float, layers: int, width: int, context: int) -> float:
    """FLOPs per token of a forward pass alone."""
    return 2 * parameters + 4 * layers * context * width


def transformer_lora(*, parameters: float, trainable: float, layers: int, width: int, context: int) -> float:
    """FLOPs per token when only `trainable` parameters get gradients: about 4 N + 2 trainable, and attention thrice."""
    return 4 * parameters + 2 * trainable + 12 * layers * context * width


def video_forward(*, parameters: float, layers: int, width: int, tokens: int, batch: int = 1) -> float:
    """FLOPs of one forward call of a DiT-style model over `tokens` latent tokens and `batch` items in the call."""
    return 2 * parameters * tokens * batch + 4 * layers * tokens**2 * width * batch


def video_train(*, parameters: float, layers: int, width: int, tokens: int, batch: int = 1) -> float:
    """FLOPs of forward and backward of the same: three times the forward."""
    return 3 * video_forward(parameters=parameters, layers=layers, width=width, tokens=tokens, batch=batch)


FORMULAS: dict[str, Callable[..., float]] = {
    "transformer_train": transformer_train,
    "transformer_infer": transformer_infer,
    "transformer_lora": transformer_lora,
    "video_forward": video_forward,
    "video_train": video_train,
}


def resolve(declared: float | Mapping[str, Any]) -> float:
    """FLOPs of a declaration: a number, or `{"formula": NAME, ..., "calls": COUNT}`.

    `calls` multiplies: forward calls, or the tokens of a language model. Raises UsageError that names the formula and
    what it takes.
    """
    if isinstance(declared, bool):
        raise UsageError("FLOPs must be a number or a formula, not true or false.")
    if isinstance(declared, (int, float)):
        return _positive(float(declared), "FLOPs")
    numbers = dict(declared)
    name = numbers.pop("formula", None)
    if name not in FORMULAS:
        raise UsageError(f"FLOPs: unknown formula {name!r}.", hint=f"Known: {', '.join(FORMULAS)}.")
    calls = _positive(numbers.pop("calls", 1), f"FLOPs, formula {name}: calls")
    for key, value in numbers.items():
        _positive(value, f"FLOPs, formula {name}: {key}")
    try:
        return calls * FORMULAS[name](**numbers)
    except TypeError as error:
        wanted = ", ".join(k for k in FORMULAS[name].__annotations__ if k != "return")
        raise UsageError(f"FLOPs, formula {name}: it takes {wanted} and calls; {error}.") from error


def _positive(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise UsageError(f"{what} must be a number above 0, not {value!r}.")
    return value
