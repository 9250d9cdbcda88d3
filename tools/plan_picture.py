"""Make docs/images/plan.svg: the plan of an example job, drawn from what `headrace explain` says of it."""

import sys
from html import escape
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.engine.explain import ExplainedPlan, Flow
from headrace.streams.command import explain_job

PICTURE = Path(__file__).parents[1] / "docs/images/plan.svg"
WIDTH, HEIGHT, GAP_X, GAP_Y, LINE = 300, 96, 50, 24, 16

app = App("shop")
orders = app.stream("orders", "id long, at timestamp", event_time="at", watermark_delay="1 minute")
payments = app.stream("payments", "order_id long, at timestamp", event_time="at", watermark_delay="1 minute")
users = app.table("users", "id long, name string", key="id")


@app.job(into=app.topic("paid"))
def paid() -> DataFrame:
    """Paid orders per minute and user."""
    pairs = orders.join(payments, on={"id": "order_id"}, within="5 minutes")
    return pairs.join(users, on="id").df.groupBy(F.window("at", "1 minute"), "name").count()


def drawn(plan: ExplainedPlan) -> str:
    """The plan from left to right: a box for each operator, and one for the rows of the job."""
    columns = {operator.name: 0 for operator in plan.operators}
    for operator in plan.operators:
        before = [name for flow in operator.inputs for name in flow.operators]
        columns[operator.name] = 1 + max((columns[name] for name in before), default=-1)
    last = 1 + max(columns.values())
    places: dict[str, tuple[int, int]] = {}
    rows = [0] * (last + 1)
    for name, column in [*columns.items(), ("rows", last)]:
        places[name] = (column * (WIDTH + GAP_X) + 10, rows[column] * (HEIGHT + GAP_Y) + 10)
        rows[column] += 1
    width, height = (last + 1) * (WIDTH + GAP_X) - GAP_X + 20, max(rows) * (HEIGHT + GAP_Y) - GAP_Y + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for operator in plan.operators:
        for flow in operator.inputs:
            parts += _arrows(flow, operator.name, places)
    parts += _arrows(plan.rows, "rows", places)
    for operator in plan.operators:
        lines = [f"{name}: {value}" for name, value in operator.parameters.items()]
        parts += _box(operator.name, lines, places[operator.name], "#e8f1fb", "#2b6cb0")
    state = ", ".join(plan.rows.stateful) or "none"
    steps = [f"Spark: {', '.join(plan.rows.steps)}", f"state of Spark's: {state}"]
    parts += _box(f"rows of {plan.job}", steps, places["rows"], "#fdf3e1", "#b7791f")
    return "\n".join([*parts, "</svg>", ""])


def _arrows(flow: Flow, target: str, places: dict[str, tuple[int, int]]) -> list[str]:
    made = []
    for name in flow.operators:
        (x, y), (to_x, to_y) = places[name], places[target]
        line = f"M{x + WIDTH} {y + HEIGHT // 2} L{to_x} {to_y + HEIGHT // 2}"
        made.append(f'<path d="{line}" stroke="#4a5568" fill="none"/>')
    return made


def _box(title: str, lines: list[str], place: tuple[int, int], fill: str, edge: str) -> list[str]:
    x, y = place
    made = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="{edge}"/>']
    made.append(f'<text x="{x + 10}" y="{y + 22}" font-size="14" font-weight="bold">{escape(title)}</text>')
    for number, line in enumerate(_wrapped(lines)):
        at = y + 42 + number * LINE
        made.append(f'<text x="{x + 10}" y="{at}" font-size="11" fill="#2d3748">{escape(line)}</text>')
    return made


def _wrapped(lines: list[str], most: int = 52) -> list[str]:
    made: list[str] = []
    for line in lines:
        text = ""
        for word in line.split():
            if text and len(text) + len(word) + 1 > most:
                made.append(text)
                text = f"  {word}"
            else:
                text = f"{text} {word}" if text else word
        made.append(text)
    return made


def main() -> int:
    """Draw the plan."""
    PICTURE.write_text(drawn(explain_job(app, "paid")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
