"""The notebook: clean as committed, and it runs to its last assertion."""

import pathlib

import pytest

nbformat = pytest.importorskip("nbformat")

NOTEBOOK = pathlib.Path(__file__).parent.parent / "colab" / "quickstart.ipynb"


def read_notebook():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebook_is_committed_without_outputs():
    for cell in code_cells(read_notebook()):
        assert not cell.outputs
        assert cell.execution_count is None


def test_notebook_has_a_badge_one_install_cell_and_ends_with_an_assertion():
    notebook = read_notebook()
    assert "colab-badge.svg" in notebook.cells[0].source
    installing = [cell for cell in code_cells(notebook) if "%pip install" in cell.source]
    assert installing == code_cells(notebook)[:1]
    assert "assert judgement.identical" in code_cells(notebook)[-1].source


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter's own packages
def test_notebook_runs_to_its_last_assertion(tmp_path: pathlib.Path):
    nbclient = pytest.importorskip("nbclient")
    notebook = read_notebook()
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    last = code_cells(notebook)[-1].outputs
    assert "resumed bit-identical" in last[0].text
