"""Files with applications in them: found, or explained."""

from pathlib import Path

import pytest

from headrace import App
from headrace.errors import Misuse
from headrace.streams.pipeline import load_app
from headrace.streams.runner import RunOptions


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend("")


def write(folder: Path, text: str, name: str = "pipeline.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_application_of_a_file_is_found_with_modules_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "NAME = 'shop'\n", "names_of_the_shop.py")
    text = "from headrace import App\nfrom names_of_the_shop import NAME\napp = App(NAME)\nsame = app\n"
    assert load_app(write(tmp_path, text)).name == "shop"


APP = "from headrace import App\napp = App('shop')\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no application"),
        ("from headrace import App\na = App('one')\nb = App('two')\n", r"several applications \(one, two\)"),
        ("import nonsense_that_is_not_there\n", "ModuleNotFoundError: No module named"),
        (
            "def f():\n    return 1 / 0\nf()\n",
            r"ZeroDivisionError: division by zero \(pipeline.py, line 2, in f\)",
        ),
        ("def f(:\n", "SyntaxError"),
        ("from headrace import App\napp = App('my shop')\n", "cannot be the application's name"),
        (f"{APP}app.stream('t')\n", r"json and csv need a schema.* \(pipeline\.py, line 3, in <module>\)"),
        (
            f"{APP}app.stream('t', 'a int', watermark_dely='1 s')\n",
            r"App\.stream\(\) got an unexpected keyword argument 'watermark_dely'\. Did you mean "
            r"'watermark_delay'\? \(pipeline\.py, line 3, in <module>\)",
        ),
        (f"{APP}app.job('x', into=app.topic('t'))\n", r"app\.job takes its arguments by name, and got 'x'"),
        (
            f"{APP}@app.job\ndef x(): ...\n",
            r"missing 1 required .* 'into' \(pipeline\.py",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        load_app(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"nothing\.py is not there"):
        load_app(tmp_path / "nothing.py")


def test_jobs_are_chosen_by_name() -> None:
    app = App("shop")
    with pytest.raises(Misuse, match="has no jobs"):
        RunOptions(app=app).chosen()
    for name in ("a", "b"):
        app.job(into=app.topic("t"), name=name)(lambda: None)
    assert [job.name for job in RunOptions(app=app).chosen()] == ["a", "b"]
    assert [job.name for job in RunOptions(app=app, jobs=("b",)).chosen()] == ["b"]
    with pytest.raises(Misuse, match=r"has no job named 'c'\. Its jobs: a, b"):
        RunOptions(app=app, jobs=("c",)).chosen()
