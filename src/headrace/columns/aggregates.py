"""Aggregates in partial form: what some rows come to, in columns that more rows can be merged into.

A *partial aggregate* is a column of the state: a count, a sum, the value with the smallest time. Partial
aggregates of partial aggregates are partial aggregates again, so a row, a pane of a window and a window are
computed in one way.

| kind of partial | column | aggregates that use it |
|---|---|---|
| rows, count, sum, min, max, m2 | numbers | count, sum, avg, min, max, variance and standard deviation |
| total | decimal | sum of decimals |
| choice | struct of order and value | min and max of other types, min_by, max_by, first, last |
| values | list | collect_list, collect_set, count distinct (exact and approximate), percentiles |
| user | struct | classes of users |

Results do not depend on the order in which rows arrive: ties of `choice` are decided by the value, and lists
are in order of event time or of their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.keyed import changes, key_codes
from headrace.columns.lists import Lists
from headrace.columns.ordering import order_of
from headrace.columns.range_kernels import find_extremes, sum_ranges
from headrace.columns.user_aggregates import AccumulatedRows, Groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.columns.range_kernels import Numbers, Positions
    from headrace.columns.user_aggregates import UserAggregate

Kind = Literal[
    "count", "sum", "mean", "min", "max", "var_pop", "var_samp", "stddev_pop", "stddev_samp", "decimal_sum",
    "least", "greatest", "min_by", "max_by", "first", "last", "first_value", "last_value",
    "collect_list", "collect_set", "count_distinct", "approx_count_distinct", "percentile", "percentile_disc",
    "user",
]  # fmt: skip
"""`first` and `last` skip nulls; `first_value` and `last_value` do not."""
PartialKind = Literal["rows", "count", "sum", "min", "max", "m2", "total", "choice", "values", "user"]
Part: TypeAlias = "Numbers | pa.Array | AccumulatedRows"
Parts: TypeAlias = "Mapping[str, Part]"
"""The columns of partial aggregates by their names: numbers as numpy arrays, all others as Arrow arrays."""

ROWS: Final = "_headrace_rows"
ORDER: Final = "order"
VALUE: Final = "value"
HASH_RANGE: Final = 2.0**64
"""How many values the hashes of `approx_count_distinct` can have."""
MOST_ROWS: Final = 1 << 20
"""Of so many rows the lists or states are merged at a time, where ranges overlap."""
_VARIANCES: Final = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
_DESCENDING: Final = ("greatest", "max_by", "last", "last_value")
_KEEPS_NULLS: Final = ("min_by", "max_by", "first_value", "last_value")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec:
    """One aggregate of a result."""

    name: str
    kind: Kind
    column: str | None = None
    """The column of values; None counts rows."""
    order: str | None = None
    """The column by whose order a value is chosen, or a list is sorted."""
    arguments: tuple[float, ...] = ()
    """Percentages from 0 to 1; or how many hashes an approximate count keeps."""
    user: UserAggregate | None = None
    """An aggregate of a user's own class."""

    @property
    def partials(self) -> tuple[Partial, ...]:
        """The partial aggregates from which this one is computed."""
        if self.user is not None:
            return (Partial(kind="user", column=self.user.column, user=self.user),)
        if self.column is None:
            return (Partial(kind="rows"),)
        simple: dict[str, tuple[PartialKind, ...]] = {
            "count": ("count",),
            "sum": ("count", "sum"),
            "mean": ("count", "sum"),
            "min": ("count", "min"),
            "max": ("count", "max"),
            "decimal_sum": ("total",),
            **dict.fromkeys(_VARIANCES, ("count", "sum", "m2")),
        }
        if self.kind in simple:
            return tuple(Partial(kind=kind, column=self.column) for kind in simple[self.kind])
        return (self._choice if self._is_choice else self._values,)

    @property
    def _is_choice(self) -> bool:
        return self.kind in (*_DESCENDING, *_KEEPS_NULLS, "least", "first")

    @property
    def _choice(self) -> Partial:
        return Partial(
            kind="choice",
            column=self.column or "",
            order=self.order or self.column or "",
            is_descending=self.kind in _DESCENDING,
            keeps_nulls=self.kind in _KEEPS_NULLS,
        )

    @property
    def _values(self) -> Partial:
        is_set = self.kind in ("collect_set", "count_distinct", "approx_count_distinct")
        most = int(self.arguments[0]) if self.kind == "approx_count_distinct" else 0
        return Partial(
            kind="values", column=self.column or "", order=self.order or "", is_set=is_set, most=most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """One column of partial aggregates."""

    kind: PartialKind
    column: str = ""
    order: str = ""
    is_descending: bool = False
    keeps_nulls: bool = False
    is_set: bool = False
    most: int = 0
    """Of a set: how many of the smallest values are kept; 0 keeps all."""
    user: UserAggregate | None = None

    @property
    def name(self) -> str:
        """The name of the column.

        >>> Partial(kind="max", column="price").name
        'price.max'
        >>> Partial(kind="choice", column="price", order="at", is_descending=True).name
        'price.choice.at.descending'
        """
        if self.kind == "rows":
            return ROWS
        if self.user is not None:
            return self.user.column
        flags = {"descending": self.is_descending, "nulls": self.keeps_nulls, "set": self.is_set}
        words = [self.column, self.kind, self.order, *(flag for flag, is_on in flags.items() if is_on)]
        return ".".join(filter(None, [*words, str(self.most or "")]))

    @property
    def is_number(self) -> bool:
        """Whether the column is a numpy array."""
        return self.kind not in ("total", "choice", "values", "user")

    def type(self, types: Mapping[str, pa.DataType]) -> pa.DataType:
        """The Arrow type of the column, by the types of the columns of values."""
        if self.kind in ("rows", "count"):
            return pa.int64()
        if self.user is not None:
            return self.user.state
        of = types[self.column]
        if self.kind == "m2":
            return pa.float64()
        if self.kind == "total":
            return pa.decimal128(38, of.scale)
        if self.kind in ("sum", "min", "max"):
            return of
        item = of if not self.order else pa.struct({ORDER: order_type(types[self.order]), VALUE: of})
        return item if self.kind == "choice" else pa.list_(item)

    def of_rows(self, rows: pa.Table) -> Part:
        """Each row as a partial aggregate."""
        if self.user is not None:
            return self.user.rows([_whole(rows[column]) for column in self.user.columns])
        if self.kind == "rows":
            return np.ones(rows.num_rows, np.int64)
        if self.is_number:
            return _numbers(rows[self.column], self.kind)
        values = _whole(rows[self.column])
        if self.kind == "total":
            return values.cast(pa.decimal128(38, values.type.scale))
        if self.kind == "values":
            return Lists.of_rows(self._items(rows, values), values.is_valid()).array
        orders = _order(rows[self.order])
        if not self.keeps_nulls:
            orders = pc.if_else(values.is_valid(), orders, pa.scalar(None, orders.type))
        return _pairs(orders, values)

    def _items(self, rows: pa.Table, values: pa.Array) -> pa.Array:
        return values if not self.order else _pairs(_order(rows[self.order]), values)

    def of_table(self, table: pa.Table) -> Numbers | pa.Array:
        """The column of a table of partial aggregates."""
        column = table[self.name]
        return np.array(column.to_numpy()) if self.is_number else _whole(column)

    def nothing(self, count: int, of: pa.DataType) -> pa.Array:
        """The column for rows that were aggregated before this aggregate was added; `of` is its type."""
        if self.user is not None:
            return self.user.initial(count)
        if self.is_number:
            empty = 0 if self.kind not in ("min", "max") else _nothing(of, self.kind)
            return pa.array(np.full(count, empty, of.to_pandas_dtype()))
        if self.kind == "values":
            return Lists(flat=pa.nulls(0, of.value_type), offsets=np.zeros(count + 1, np.int64)).array
        return pa.nulls(count, of)

    def merge(self, parts: Parts, starts: Positions) -> Numbers | pa.Array:
        """One partial aggregate for each run of rows that begins at one of `starts`."""
        values = parts[self.name]
        if self.is_number:
            if self.kind == "m2":
                return _merge_m2(parts, self.column, starts)
            numbers = cast("Numbers", values)
            return np.asarray(_reduction(self.kind, numbers).reduceat(numbers, starts))
        if self.user is not None:
            return self.user.merge(values, Groups(starts, len(values)))
        if self.kind == "total":
            return _sum_decimals(values, starts)
        if self.kind == "choice":
            return values.take(self._chosen(values, starts))
        return self.tidied(Lists.of(values).joined(starts)).array

    def _chosen(self, pairs: pa.StructArray, starts: Positions) -> pa.Array:
        """The first row of each run by order and, among equals, by value; nulls are last."""
        orders, values = (pc.struct_field(pairs, name) for name in (ORDER, VALUE))
        columns = {"run": pa.array(_run_numbers(starts, len(pairs)))}
        direction = "descending" if self.is_descending else "ascending"
        keys = [("run", "ascending")]
        if self.is_descending and pa.types.is_floating(orders.type):
            columns["nan"] = pc.is_nan(orders).cast(pa.int8())  # NaN is larger than any number, as in Spark
            keys.append(("nan", "descending"))
        columns[ORDER] = orders
        keys.append((ORDER, direction))
        if not pa.types.is_nested(values.type) and self.column != self.order:
            columns[VALUE] = values
            keys.append((VALUE, "ascending"))
        return pc.sort_indices(pa.table(columns), sort_keys=keys).take(pa.array(starts))

    def tidied(self, lists: Lists) -> Lists:
        """Lists in the form that is kept: sets without duplicates, others sorted where there is an order."""
        if self.is_set:
            return lists.distinct(self.most)
        return lists.sorted(by=(ORDER, VALUE)) if self.order else lists


def partials_of(specs: Iterable[AggregateSpec]) -> tuple[Partial, ...]:
    """The partial aggregates that these aggregates need, each once; the number of rows is the first."""
    wanted = [Partial(kind="rows"), *(partial for spec in specs for partial in spec.partials)]
    return tuple(dict.fromkeys(wanted))


def with_state(state: pa.Table | None, fresh: pa.Table, partials: Sequence[Partial]) -> pa.Table:
    """The rows of the state and those of a batch; aggregates that the state does not have start empty."""
    if state is None:
        return fresh
    known = set(state.column_names)
    for partial in partials:
        if partial.name not in known:
            column = partial.nothing(state.num_rows, fresh.schema.field(partial.name).type)
            state = state.append_column(partial.name, column)
    return pa.concat_tables([state.select(fresh.column_names), fresh])


def parts_of_rows(rows: pa.Table, partials: Sequence[Partial]) -> dict[str, Part]:
    """Each row as partial aggregates."""
    return {partial.name: partial.of_rows(rows) for partial in partials}


def parts_of_table(table: pa.Table, partials: Sequence[Partial]) -> dict[str, Numbers | pa.Array]:
    """The partial aggregates of a table of them."""
    return {partial.name: partial.of_table(table) for partial in partials}


def merge_parts(
    parts: Parts, partials: Sequence[Partial], order: Positions, starts: Positions
) -> dict[str, Numbers | pa.Array]:
    """The partial aggregates in another order, merged into one for each run that starts at `starts`."""
    taken = {partial.name: _taken(parts[partial.name], order) for partial in partials}
    if not len(starts):
        return {name: _nothing_of(values) for name, values in taken.items()}
    return {partial.name: partial.merge(taken, starts) for partial in partials}


def merge_by_place(
    rows: pa.Table, keys: Sequence[str], places: Positions, parts: Parts, partials: Sequence[Partial]
) -> tuple[Positions, dict[str, Numbers | pa.Array]]:
    """One partial aggregate for each key and place, in order of both; and a row of each."""
    codes = key_codes(rows, keys)
    # Sums decide last: a shuffle delivers partial sums in another order each time.
    order = order_of(codes, places, decimal_sums(parts), 0)
    starts = np.flatnonzero(changes(codes[order], places[order])) if len(codes) else np.empty(0, np.int64)
    return order[starts], merge_parts(parts, partials, order, starts)


def decimal_sums(parts: Parts) -> list[Numbers]:
    """The sums that depend on the order in which they are added."""
    return [
        values
        for name, values in parts.items()
        if name.endswith((".sum", ".m2")) and isinstance(values, np.ndarray) and values.dtype.kind == "f"
    ]


def order_type(of: pa.DataType) -> pa.DataType:
    """As what the values of an order are kept: times are numbers."""
    return pa.int64() if pa.types.is_timestamp(of) else of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges of rows, none of which begins or ends before the one in front of it."""

    firsts: Positions
    lasts: Positions
    blocks: Positions
    """Numbers for stretches of rows, upwards from 0: see `sum_ranges`."""

    def result(self, spec: AggregateSpec, parts: Parts) -> pa.Array:
        """An aggregate for each range; null where none of its rows has a value."""
        if spec.column is None and spec.user is None:
            return pa.array(self._sums(parts[ROWS]))
        if spec.kind in ("count", "sum", "mean", "min", "max"):
            return self._number(spec, parts)
        pieces = [piece._merged_result(spec, parts) for piece in self._pieces()]
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays([_whole(piece) for piece in pieces])

    def _pieces(self) -> Iterator[Ranges]:
        """The ranges in pieces that are small enough to be taken out as rows."""
        rows = np.cumsum(self.lasts - self.firsts + 1)
        if not len(rows) or rows[-1] <= MOST_ROWS:
            yield self
            return
        begin = 0
        while begin < len(rows):
            before = rows[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(rows, before + MOST_ROWS, side="right")))
            yield Ranges(firsts=self.firsts[begin:end], lasts=self.lasts[begin:end], blocks=self.blocks)
            begin = end

    def _merged_result(self, spec: AggregateSpec, parts: Parts) -> pa.Array:
        if spec.kind in _VARIANCES:
            return self._variance(spec, parts)
        (partial,) = spec.partials
        merged = self._merged(partial, parts)
        if spec.user is not None:
            return spec.user.finish(merged)
        if partial.kind == "total":
            return merged
        if partial.kind == "choice":
            return _chosen_values(merged)
        return list_result(spec, Lists.of(merged))

    def _number(self, spec: AggregateSpec, parts: Parts) -> pa.Array:
        counts = self._sums(parts[f"{spec.column}.count"])
        if spec.kind == "count":
            return pa.array(counts)
        return pa.array(self._values(spec, parts, counts), mask=counts == 0)

    def _values(self, spec: AggregateSpec, parts: Parts, counts: Numbers) -> Numbers:
        if spec.kind in ("min", "max"):
            return self._extremes(spec, parts)
        sums = self._sums(parts[f"{spec.column}.sum"])
        return sums if spec.kind == "sum" else sums / np.maximum(counts, 1)

    def _sums(self, values: Numbers | pa.Array) -> Numbers:
        numbers = cast("Numbers", values)
        if numbers.dtype.kind == "i":
            # Whole numbers are exact in any order, and so are differences of running sums.
            running = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers)])
            return np.asarray(running[self.lasts + 1] - running[self.firsts])
        sums = np.empty_like(numbers, shape=len(self.firsts))
        heads, tails = np.empty_like(numbers), np.empty_like(numbers)
        ends = np.flatnonzero(np.diff(self.blocks, append=-1))
        sum_ranges(numbers, self.blocks, ends, self.firsts, self.lasts, heads, tails, sums)
        return sums

    def _extremes(self, spec: AggregateSpec, parts: Parts) -> Numbers:
        values = cast("Numbers", parts[f"{spec.column}.{spec.kind}"])
        counts = cast("Positions", parts[f"{spec.column}.count"])
        found = np.empty(len(self.firsts), np.int64)
        queue = np.empty(len(values), np.int64)
        find_extremes(values, counts, spec.kind == "max", self.firsts, self.lasts, queue, found)
        return values[found]

    def _variance(self, spec: AggregateSpec, parts: Parts) -> pa.Array:
        names = [partial.name for partial in spec.partials]
        rows, starts = self._expanded
        counts, _, m2 = (
            partial.merge({name: _taken(parts[name], rows) for name in names}, starts)
            if len(starts)
            else np.empty(0)
            for partial in spec.partials
        )
        is_sample = spec.kind.endswith("samp")
        # As in Spark: the variance of one value is 0, and that of a sample of one value is null.
        variances = np.asarray(m2) / np.maximum(counts - is_sample, 1)
        found = np.sqrt(variances) if spec.kind.startswith("stddev") else variances
        return pa.array(found, mask=counts - is_sample < 1)

    def _merged(self, partial: Partial, parts: Parts) -> pa.Array:
        """The partial aggregates of each range as one."""
        rows, starts = self._expanded
        taken = _taken(parts[partial.name], rows)
        return partial.merge({partial.name: taken}, starts) if len(starts) else _nothing_of(taken)

    @property
    def _expanded(self) -> tuple[Positions, Positions]:
        """The rows of all ranges one after the other, and where each range starts among them."""
        lengths = self.lasts - self.firsts + 1
        ends = np.cumsum(lengths)
        starts = ends - lengths
        rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.firsts - starts, lengths)
        return rows, starts


def list_result(spec: AggregateSpec, lists: Lists) -> pa.Array:
    """What an aggregate makes of the values of each range."""
    if spec.kind == "collect_list":
        return lists.field(VALUE).array if spec.order else lists.array
    if spec.kind == "collect_set":
        return lists.array
    if spec.kind == "count_distinct":
        return pa.array(lists.lengths)
    if spec.kind == "approx_count_distinct":
        return pa.array(_distinct_values(lists, int(spec.arguments[0])))
    return lists.quantiles(spec.arguments, is_continuous=spec.kind == "percentile")


def fitted(columns: Iterable[pa.Array | pa.ChunkedArray], schema: pa.Schema) -> pa.Table:
    """Columns as a table of this schema; a list of one quantile becomes a value where that is asked for."""
    made = []
    for column, field in zip(columns, schema, strict=True):
        is_single = pa.types.is_list(column.type) and not pa.types.is_list(field.type)
        made.append((pc.list_element(column, 0) if is_single else column).cast(field.type))
    return pa.Table.from_arrays(made, schema=schema)


def _chosen_values(pairs: pa.StructArray) -> pa.Array:
    """The values of choices; null where no row had an order."""
    is_missing = pc.struct_field(pairs, ORDER).is_null().to_numpy(zero_copy_only=False)
    return pc.struct_field(pairs, VALUE).take(pa.array(np.arange(len(pairs)), mask=is_missing))


def _distinct_values(lists: Lists, most: int) -> NDArray[np.int64]:
    """How many values a set of the smallest hashes stands for; exactly, as long as all of them are there."""
    lengths = lists.lengths
    is_full = lengths >= most
    counts = lengths.copy()
    if is_full.any():
        largest = lists.flat.take(pa.array(lists.offsets[1:][is_full] - 1)).to_numpy().astype(np.float64)
        share = (largest + HASH_RANGE / 2) / HASH_RANGE
        counts[is_full] = np.rint((most - 1) / share).astype(np.int64)
    return counts


def _numbers(column: pa.ChunkedArray, kind: str) -> Numbers:
    if kind == "count":
        return np.array(pc.is_valid(column).to_numpy(), np.int64)
    if kind == "m2":
        return np.zeros(len(column), np.float64)
    nothing = _nothing(column.type, kind)
    filled = pc.fill_null(column, pa.scalar(nothing, column.type)) if column.null_count else column
    # A copy, for loops are compiled for memory that can be written; and a sum that makes 0 of -0: which of
    # the two is the smaller is not defined.
    return np.asarray(filled.to_numpy() + column.type.to_pandas_dtype()(0))


def _nothing(of: pa.DataType, kind: str) -> float | int:
    """The value that changes no sum, or no extreme."""
    if kind == "sum":
        return 0
    if pa.types.is_floating(of):
        return float("nan") if kind == "min" else float("-inf")
    return int(np.iinfo(np.int64).max if kind == "min" else np.iinfo(np.int64).min)


def _reduction(kind: str, values: Numbers) -> np.ufunc:
    if kind == "min":
        # NaN is larger than any number: the smallest is NaN only where there is nothing else.
        return np.fmin if values.dtype.kind == "f" else np.minimum
    return np.maximum if kind == "max" else np.add


def _merge_m2(parts: Parts, column: str, starts: Positions) -> NDArray[np.float64]:
    """Sums of squared differences from the mean; exact for means far from 0, unlike sums of squares."""
    counts = np.asarray(parts[f"{column}.count"], np.float64)
    sums = np.asarray(parts[f"{column}.sum"], np.float64)
    runs = _run_numbers(starts, len(counts))
    means = sums / np.maximum(counts, 1)
    total = np.add.reduceat(sums, starts) / np.maximum(np.add.reduceat(counts, starts), 1)
    moved = np.asarray(parts[f"{column}.m2"]) + counts * (means - total[runs]) ** 2
    return np.asarray(np.add.reduceat(moved, starts))


def _sum_decimals(values: pa.Array, starts: Positions) -> pa.Array:
    table = pa.table({"run": _run_numbers(starts, len(values)), "value": values})
    summed = table.group_by("run", use_threads=False).aggregate([("value", "sum")])
    return _whole(summed["value_sum"]).cast(values.type)


def _run_numbers(starts: Positions, count: int) -> NDArray[np.int64]:
    """The number of its run for each of `count` rows."""
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=count))


def _taken(values: Part, rows: Positions) -> Part:
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _nothing_of(values: Part) -> Numbers | pa.Array:
    """The column without rows."""
    return values.nothing if isinstance(values, AccumulatedRows) else values


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    made = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(made.chunks) if isinstance(made, pa.ChunkedArray) else made


def _order(column: pa.ChunkedArray) -> pa.Array:
    return _whole(column).cast(order_type(column.type))


def _pairs(orders: pa.Array, values: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([orders, values], names=[ORDER, VALUE])
