"""Eight CPU devices for every test, files as on a disk, and Hypothesis without deadlines.

`pytest --hypothesis-profile=thorough` looks for more examples than there is time for by default.
"""

import os

# jax reads both when it is imported, which no test module may do before this.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import pytest
from hypothesis import settings

from orbax_gds import coding_choice

settings.register_profile("local", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=10, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("ci" if "CI" in os.environ else "local")


@pytest.fixture(autouse=True, scope="session")
def on_a_disk():
    """Saves are coded alike where the temporary directory lies in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding_choice, "memory_file_system", lambda directory: None)
        yield
