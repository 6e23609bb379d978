"""Number formats of a run: FP16 with a loss scaler on GPUs, FP32 on CPUs, BF16 on request.

Paper: Methods, "Optimization and Reproducibility Settings" (FP16 automatic mixed precision).
"""

from __future__ import annotations

import torch

from vaiom.errors import ConfigError

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`; a device that is not there is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("not a device", expected="auto, cpu, cuda or cuda:N", got=repr(name)) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("a device that is not supported", expected="auto, cpu, cuda or cuda:N", got=repr(name))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError("no such device", expected=f"one of {count} CUDA devices", got=name, fix="--device cpu")
    return device


def resolve_type(precision: str, device: torch.device) -> torch.dtype:
    """The type of matrix products; `auto` is FP16 on GPUs and FP32 on CPUs."""
    if precision == "auto":
        precision = "fp16" if device.type == "cuda" else "fp32"
    if precision != "fp32" and device.type == "cpu":
        raise ConfigError(
            "CPUs train in FP32 here",
            got=f"precision={precision}",
            fix="--set precision=fp32, or a CUDA device",
        )
    return _TYPES[precision]


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
