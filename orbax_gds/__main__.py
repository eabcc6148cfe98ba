"""`python -m orbax_gds` is `orbax-gds`."""

from orbax_gds.cli import main

main(prog_name="orbax-gds")
