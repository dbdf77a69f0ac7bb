#!/usr/bin/env python3
"""Make tests/fixtures/mlx.safetensors: small matrices that MLX itself has quantised, and their values.

    pip install "mlx[cpu]==0.32.4" numpy
    python tests/reference/make_mlx.py

For bits b and groups of g columns, and for each dtype of the scales:

qB_gG_DTYPE.weight, .scales, .biases   as mlx.core.quantize gives them, rows of 128 columns
qB_gG_DTYPE.values                     F32 [rows, 128]: scale * code + bias in f32
"""

import pathlib

import mlx.core as mx

ROWS, COLUMNS = 3, 128
OUT = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "mlx.safetensors"
DTYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}


def main():
    mx.random.seed(7)
    tensors = {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group, dtype in ((32, "bf16"), (64, "f16"), (128, "f32")):
            matrix = (mx.random.normal((ROWS, COLUMNS)) * 0.05).astype(DTYPES[dtype])
            codes, scales, biases = mx.quantize(matrix, group_size=group, bits=bits)
            exact = [part.astype(mx.float32) for part in (scales, biases)]
            name = f"q{bits}_g{group}_{dtype}"
            tensors |= {f"{name}.weight": codes, f"{name}.scales": scales, f"{name}.biases": biases}
            tensors[f"{name}.values"] = mx.dequantize(codes, *exact, group_size=group, bits=bits)
    mx.save_safetensors(str(OUT), tensors)


if __name__ == "__main__":
    main()
