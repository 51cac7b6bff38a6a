"""Compiles the kernels for sm_90 as a Llama 3 8B needs them, and says what came out, as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from services.worker.engine.gpu.attention import DECODE, Heads, prefill_tuning
from services.worker.engine.gpu.kernels import activation, attention, norm, rope, sampling

HOPPER = GPUTarget("cuda", 90, 32)
LLAMA = Heads(count=32, kv_count=8, dim=128, scale=0.088, cap=0.0)
VOCABULARY, HIDDEN, INNER, PAGE = 128_256, 4_096, 14_336, 16
# Arguments by name: numbers of the step, of sampling, and plain values; all others hold activations.
INT32 = (
    "contexts",
    "tables",
    "rows",
    "firsts",
    "starts",
    "counts",
    "positions",
    "cells",
    "likeliest",
    "drawn",
)
INT64 = ("kinds", "keys", "top_ks", "candidate_ids", "token_ids", "settled", "finite")
FLOAT64 = ("temperatures", "top_ps", "min_ps", "score")
FLOAT32 = ("parts", "weights", "stream", "norm", "addend_norm", "frequencies", "head_norm")
FLOAT32 += ("logits", "most", "mass", "candidates")
VALUES = {"table_stride": "i32", "blocks": "i32", "scale": "fp32", "epsilon": "fp32"}


def type_of(argument: str, activations: str) -> str:
    name = argument.removesuffix("_ptr")
    if name == argument:
        return VALUES[argument]
    for kind, names in {"i32": INT32, "i64": INT64, "fp64": FLOAT64, "fp32": FLOAT32}.items():
        if name in names:
            return f"*{kind}"
    return f"*{activations}"


def build(kernel: Any, constants: dict[str, Any], activations: str, **options: int) -> dict[str, int]:
    arguments = [name for name in kernel.arg_names if name not in constants]
    signature = {name: type_of(name, activations) for name in arguments}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name in arguments
        if name.endswith("_ptr")
    }
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constants, aligned)
    made = triton.compile(source, target=HOPPER, options=options)
    return {
        "cubin_bytes": len(made.asm["cubin"]),
        "shared_bytes": made.metadata.shared,
        "tensor_core_products": len(re.findall(r"wgmma\.mma_async|mma\.sync", made.asm["ptx"])),
        "stack_bytes": stack_bytes(made.asm["cubin"]),
    }


def stack_bytes(cubin: bytes) -> int:
    """What a thread keeps outside its registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(found) for found in re.findall(r"STACK:(\d+)", usage))


def attention_kernels() -> dict[str, dict[str, int]]:
    plain, special = {"PAGE": PAGE, "WINDOW": 0, "CAP": 0.0}, {"PAGE": PAGE, "WINDOW": 1024, "CAP": 50.0}
    whole, split = LLAMA.blocks(DECODE) | {"SPLITS": 1}, LLAMA.blocks(DECODE) | {"SPLITS": 16}
    run = {"num_warps": DECODE.warps, "num_stages": DECODE.stages}
    ends = {"HEAD_DIM": 128, "BLOCK_D": 128, "BLOCK_N": DECODE.keys, "SPLITS": 16, "WINDOW": 0}
    return {
        "decode bf16 in one": build(attention.decode, whole | plain, "bf16", **run),
        "decode bf16 in 16": build(attention.decode, split | special, "bf16", **run),
        "decode fp32 in 16": build(attention.decode, split | special, "fp32", **run),
        "reduce bf16": build(attention.reduce, ends, "bf16"),
        "prefill bf16": build_prefill("bf16", plain),
        "prefill bf16 with a window": build_prefill("bf16", special),
        "prefill fp32": build_prefill("fp32", plain),
    }


def build_prefill(kind: str, constants: dict[str, Any]) -> dict[str, int]:
    tuning = prefill_tuning(float32=kind == "fp32")
    run = {"num_warps": tuning.warps, "num_stages": tuning.stages}
    return build(attention.prefill, LLAMA.blocks(tuning) | constants, kind, **run)


def small_kernels() -> dict[str, dict[str, int]]:
    width = {"WIDTH": HIDDEN, "BLOCK": HIDDEN, "ADDS": True, "NORMS_ADDEND": True}
    heads = {"HEADS": 32, "KV_HEADS": 8, "PAGE": PAGE, "HEAD_DIM": 128, "BLOCK_H": 64, "BLOCK_HALF": 64}
    return {
        "add_norm bf16": build(norm.add_norm, width, "bf16", num_warps=8),
        "rotate_and_write bf16": build(rope.rotate_and_write, heads | {"NORMS": True}, "bf16", num_warps=8),
        "gated bf16": build(activation.gated, {"INNER": INNER, "BLOCK": 1024, "GELU": True}, "bf16"),
    }


def sampling_kernels() -> dict[str, dict[str, int]]:
    width = {"BLOCKS": 64, "VOCABULARY": VOCABULARY, "WIDTH": 1024, "BLOCK_W": 1024}
    return {
        "scan": build(sampling.scan, {"VOCABULARY": VOCABULARY, "BLOCK": 2048}, "fp32", num_warps=8),
        "choose": build(sampling.choose, width, "fp32"),
    }


if __name__ == "__main__":
    json.dump(attention_kernels() | small_kernels() | sampling_kernels(), sys.stdout)
