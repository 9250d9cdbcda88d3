"""What `import headrace` offers."""

import inspect
import subprocess
import sys

import headrace


def test_all_public_names_are_listed_and_can_be_imported() -> None:
    assert set(headrace.__all__) <= set(dir(headrace))
    assert {name for name in headrace.__all__ if getattr(headrace, name) is None} == set()


def test_the_types_in_signatures_and_the_errors_to_catch_are_public() -> None:
    assert issubclass(headrace.TokenExpired, headrace.HeadraceError)
    for name in ("Rows", "Stream", "Table", "TableView"):
        assert inspect.isclass(getattr(headrace, name))


def test_listing_the_names_imports_nothing_heavy() -> None:
    program = "import sys, headrace; dir(headrace); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
