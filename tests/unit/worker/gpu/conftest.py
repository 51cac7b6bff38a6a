"""Kernels run under Triton's interpreter, which has to be chosen before Triton is first imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
