"""What `codec` codes: real weights in five dtypes, a train state, synthetic and random words."""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from benchmarks.state import BF16_KIND, Leaves
from benchmarks.weights import PACKAGE, as_bfloat16, as_float8, gaussian, minilm_path, read_tensors

FIRST_BYTES = 24_000_000  # chosen: the part of MiniLM whose rows came from a lower precision
SYNTHETIC_BYTES = 32 << 20  # chosen: as large as the last-level caches of the day
COLUMNS = 1024
SPARSE_SHARE = 0.05  # chosen: a leaf with more zero rows than this is no dense one

MINILM_BF16 = "MiniLM bf16"
MINILM_FP32 = "MiniLM fp32"
MINILM_FIRST = "MiniLM fp32, first 24 MB"
MINILM_E4M3 = "MiniLM e4m3fn"
MINILM_E5M2 = "MiniLM e5m2"
MINILM = (MINILM_BF16, MINILM_FP32, MINILM_FIRST, MINILM_E4M3, MINILM_E5M2)
GAUSSIAN = ("gaussian bf16", "gaussian fp32")
RANDOM = ("random uint8", "random bf16")
PARAMS = "train params bf16"
MASTER = "train master fp32"
MU_DENSE = "train mu fp32, dense"
NU_DENSE = "train nu fp32, dense"
MU_ROWS = "train mu fp32, zero rows"
NU_ROWS = "train nu fp32, zero rows"
MU_BF16 = "train mu bf16, dense"
TRAIN = (PARAMS, MASTER, MU_DENSE, NU_DENSE, MU_ROWS, NU_ROWS, MU_BF16)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Data to code.

    Attributes:
        name: What it is; the row's group.
        tensors: Arrays of one dtype, coded one by one in this order.
        missing: Why there are none.
    """

    name: str
    tensors: tuple[np.ndarray, ...] = ()
    missing: str | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def minilm_streams() -> Iterator[Stream]:
    """Yield MiniLM's weights in five forms, or the reason why there are none."""
    path = minilm_path()
    if path is None:
        reason = f"{PACKAGE} is not installed (extra [bench])"
        yield from (Stream(name=name, missing=reason) for name in MINILM)
        return
    weights = tuple(read_tensors(path).values())
    yield Stream(name=MINILM_BF16, tensors=tuple(map(as_bfloat16, weights)))
    yield Stream(name=MINILM_FP32, tensors=weights)
    yield Stream(name=MINILM_FIRST, tensors=first_bytes(weights, FIRST_BYTES))
    for name, dtype in ((MINILM_E4M3, "float8_e4m3fn"), (MINILM_E5M2, "float8_e5m2")):
        yield Stream(name=name, tensors=tuple(as_float8(tensor, dtype) for tensor in weights))


def synthetic_streams() -> Iterator[Stream]:
    """Yield gaussian words, called synthetic, and random ones."""
    deviates = gaussian(SYNTHETIC_BYTES // 2, seed=1).reshape(-1, COLUMNS)
    yield Stream(name=GAUSSIAN[0], tensors=(as_bfloat16(deviates),))
    yield Stream(name=GAUSSIAN[1], tensors=(deviates[: len(deviates) // 2],))
    noise = np.frombuffer(np.random.default_rng(2).bytes(SYNTHETIC_BYTES), np.uint8)
    yield Stream(name=RANDOM[0], tensors=(noise.reshape(-1, COLUMNS),))
    yield Stream(name=RANDOM[1], tensors=(noise.view(ml_dtypes.bfloat16).reshape(-1, COLUMNS),))


def train_streams(kinds: dict[str, Leaves]) -> tuple[list[Stream], str]:
    """Return the streams of a train state, and where its rows of zeros come from."""
    mu, nu = kinds["mu_f32"], kinds["nu_f32"]
    sparse = [name for name, leaf in nu.items() if zero_row_share(leaf) > SPARSE_SHARE]
    dense = [name for name in nu if name not in sparse]
    mu_rows, nu_rows = ([leaves[name] for name in sparse] for leaves in (mu, nu))
    shares = [f"{name} ({zero_row_share(nu[name]):.0%})" for name in sparse]
    origin = f"rows of zeros: real, in {', '.join(shares)}"
    if not sparse:
        largest = max(nu, key=lambda name: nu[name].size)
        mu_rows, nu_rows = ([without_half_of_the_rows(x[largest])] for x in (mu, nu))
        origin = f"rows of zeros: made, half of the rows of {largest}, drawn by lot, set to zero"
    mu_dense = tuple(mu[name] for name in dense)
    streams = [
        Stream(name=PARAMS, tensors=tuple(kinds[BF16_KIND].values())),
        Stream(name=MASTER, tensors=tuple(kinds["master_f32"].values())),
        Stream(name=MU_DENSE, tensors=mu_dense),
        Stream(name=NU_DENSE, tensors=tuple(nu[name] for name in dense)),
        Stream(name=MU_ROWS, tensors=tuple(mu_rows)),
        Stream(name=NU_ROWS, tensors=tuple(nu_rows)),
        Stream(name=MU_BF16, tensors=tuple(map(as_bfloat16, mu_dense))),
    ]
    return streams, origin


def zero_row_share(leaf: np.ndarray) -> float:
    """Return the share of a leaf's rows, along its first axis, whose words are all zero."""
    if leaf.ndim < 2:
        return 0.0
    return float(np.mean(~leaf.reshape(len(leaf), -1).any(axis=1)))


def without_half_of_the_rows(leaf: np.ndarray) -> np.ndarray:
    """Return a copy of a leaf with half of its rows set to zero, the same for every leaf."""
    leaf = leaf.copy()
    leaf[np.random.default_rng(3).permutation(len(leaf))[::2]] = 0
    return leaf


def first_bytes(tensors: tuple[np.ndarray, ...], n_bytes: int) -> tuple[np.ndarray, ...]:
    """Return the tensors that begin within the first bytes, the last one cut after a whole row."""
    kept, left = [], n_bytes
    for tensor in tensors:
        row_bytes = tensor[:1].nbytes
        rows = tensor[: left // row_bytes]
        left -= tensor.nbytes
        if rows.size:
            kept.append(rows)
        if left <= 0:
            break
    return tuple(kept)
