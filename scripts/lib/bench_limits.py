#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the tables of scripts/bench_gpu.sh and checks the limits that its results must keep.

    bench_limits.py [FILE]...    reads the output of kernels/bench/post_rate and of efa-gda/benches/soft_adapter

A measurement is a line of seven fields that tabs separate: "row", the case, the batch window, what was measured, and
the median, the lowest and the highest value. Other lines are printed unchanged. A limit whose rows were not measured is
skipped and named.

Exit status: 0; 1 a limit is not kept, or nothing was measured; 2 usage.
"""

import sys
from dataclasses import dataclass

# What is measured with the drop-in for NCCL's GIN and 16-byte stores.
DROP_IN_16 = "nccl drop-in, 16-byte stores"
# The rows that have a bare loop.
BARE_ROWS = {("block of 8 warps owns its queue", "64"), ("16 x 1 warp, 16 queues", "64")}

# A ratio of two medians of one row: the limit's name, the dividend, the divisor, the least ratio, and whether a row has
# the limit, by its case and batch window. Rates.
RATIOS = (
    ("after, of before", "after", "before", 0.95, lambda *_: True),
    ("after, of NCCL", "after", "nccl", 2.0, lambda *_: True),
    ("after, of the bare loop", "after", "bare", 0.97, lambda *row: row in BARE_ROWS),
    ("drop-in, 16-byte stores, of NCCL", DROP_IN_16, "nccl", 2.0, lambda case, _: "1 thread" not in case),
    ("drop-in, 16-byte stores, of NCCL, one thread", DROP_IN_16, "nccl", 1.5, lambda case, _: "1 thread" in case),
)

# Cases of softefa: the case, its unit, the limit's name, what is judged, what it is divided by (None: the value is
# judged itself), whether the limit is the least or the most, and the limit.
SOFTEFA = (
    ("softefa, counters in GPU memory", "M/s", "this engine's 64-byte writes", "after", None, "least", 2.0),
    ("softefa, counters in GPU memory", "M/s", "NCCL's 64-byte writes", "nccl", None, "least", 2.0),
    ("softefa, put with signal, 4 KiB", "us", "signal, of two completions", "signal", "two completions", "most", 1.15),
    ("softefa, waiting for one's own call", "us", "15 warps post on, of an idle queue", "busy", "idle", "most", 1.5),
)


@dataclass
class Measured:
    """A median and its range."""

    median: float
    low: float
    high: float

    def __str__(self):
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def read(lines):
    """The measurements by (case, batch window) and by what was measured, and the other lines."""
    rows, others = {}, []
    for line in lines:
        fields = line.rstrip("\n").split("\t")
        if fields[0] != "row":
            others.append(line.rstrip("\n"))
            continue
        if len(fields) != 7:
            raise ValueError(f"a row has {len(fields)} fields, and must have 7: {line!r}")
        values = Measured(*(float(field) for field in fields[4:]))
        rows.setdefault((fields[1], fields[2]), {})[fields[3]] = values
    return rows, others


def ratio(row, dividend, divisor):
    """The ratio of two medians, or None if one was not measured."""
    if dividend not in row or divisor not in row or row[divisor].median == 0:
        return None
    return row[dividend].median / row[divisor].median


def table(rows):
    """The comparison of posting engines in Markdown; M/s."""
    columns = ("after", "before", "nccl", "bare")
    lines = [
        "| case | max_batch | after, M/s | before, M/s | NCCL, M/s | bare loop, M/s | of before | of NCCL | of bare |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (case, batch), row in rows.items():
        cells = [str(row[column]) if column in row else "-" for column in columns]
        ratios = (ratio(row, dividend, divisor) for _, dividend, divisor, *_ in RATIOS[:3])
        cells += ["-" if value is None else f"{value:.3f}" for value in ratios]
        lines.append(f"| {case} | {batch} | " + " | ".join(cells) + " |")
    return lines


def details(rows):
    """What a row has beside the columns of the table."""
    for (case, batch), row in rows.items():
        for what, value in row.items():
            if what.startswith("after,"):
                share = value.median / row["after"].median
                yield f"| {case} | {batch} | {what.removeprefix('after, ')} | {value} | {share:.2f} |"
            elif what.startswith("nccl drop-in"):
                yield f"| {case} | {batch} | {what}; of NCCL | {value} | {value.median / row['nccl'].median:.2f} |"


def verdict(name, observed, kind, limit):
    """One line and whether the limit is kept. `observed`: pairs of a row's name and a number."""
    if not observed:
        return f"SKIP  {name}: not measured", True
    worst = min if kind == "least" else max
    where, value = worst(observed, key=lambda pair: pair[1])
    kept = value >= limit if kind == "least" else value <= limit
    rows = f", the worst of {len(observed)} rows: {where}" if len(observed) > 1 else ""
    line = f"{'PASS' if kept else 'FAIL'}  {name}: {value:.3f}, at {kind} {limit:g}{rows}"
    broken = [pair for pair in observed if (pair[1] < limit if kind == "least" else pair[1] > limit)]
    return "\n".join([line] + [f"        {name}: {value:.3f}" for name, value in broken]), kept


def engines(rows):
    """The rows that compare posting engines."""
    return {key: row for key, row in rows.items() if "after" in row and not key[0].startswith("softefa")}


def limits(rows):
    """The verdict of each limit."""
    compared = engines(rows)
    for name, dividend, divisor, least, applies in RATIOS:
        observed = [
            (f"{case}, max_batch {batch}", value)
            for (case, batch), row in compared.items()
            if applies(case, batch)
            if (value := ratio(row, dividend, divisor)) is not None
        ]
        yield verdict(name, observed, "least", least)
    for case, _, name, what, divisor, kind, limit in SOFTEFA:
        observed = []
        for (measured, _), row in rows.items():
            if measured == case and what in row:
                value = ratio(row, what, divisor) if divisor else row[what].median
                observed += [] if value is None else [(measured, value)]
        yield verdict(f"{case}: {name}", observed, kind, limit)


def main(files):
    """Prints tables and verdicts."""
    lines = []
    for file in files or ["/dev/stdin"]:
        with open(file, encoding="utf-8") as stream:
            lines += stream.readlines()
    try:
        rows, others = read(lines)
    except ValueError as error:
        sys.exit(f"bench_limits.py: {error}")
    print("\n".join(others))
    compared = engines(rows)
    if compared:
        print("\n".join(table(compared)))
        print("\n| case | max_batch | | M/s | of the case |\n|---|---|---|---|---|")
        print("\n".join(details(compared)))
    units = {case: unit for case, unit, *_ in SOFTEFA}
    for (case, batch), row in rows.items():
        if (case, batch) not in compared:
            for what, value in row.items():
                print(f"{case}: {what}: {value} {units.get(case, 'M/s')}")
    if not rows:
        sys.exit("bench_limits.py: nothing was measured")
    print()
    verdicts = list(limits(rows))
    print("\n".join(line for line, _ in verdicts))
    return 0 if all(kept for _, kept in verdicts) else 1


if __name__ == "__main__":
    if any(argument in ("-h", "--help") for argument in sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
