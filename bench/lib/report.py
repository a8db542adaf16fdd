"""Rows as a readable table (Markdown, to be pasted into the README)."""


def ratio(ours, value):
    """gantry's figure divided by the other's."""
    return f"{ours / value:.2f}" if ours else "-"


def verdict(figure, target, shown):
    """Whether a target is met."""
    return f"{shown}: {'met' if figure <= target else 'MISSED'}"


def time_rows(benchmark, rows, ours):
    """Times of short commands."""
    yield ["", "median ms", "min", "p90", "n", "gantry / it", "target"]
    base = rows[ours]["median_ms"] if ours else None
    ratios, limits = getattr(benchmark, "TARGETS", {}), getattr(benchmark, "TARGETS_MS", {})
    for name, row in rows.items():
        median, target = row["median_ms"], ""
        if name in limits:
            target = verdict(median, limits[name], f"{limits[name]} ms")
        elif name in ratios and ours:
            target = verdict(base / median, ratios[name], f"{ratios[name]:.2f}")
        yield [name, f"{median:.2f}", f"{row['min_ms']:.2f}", f"{row['p90_ms']:.2f}", str(row["n"]),
               ratio(base, median), target]


def fetch_rows(benchmark, rows, ours):
    """Times of a large fetch, without and with a sync."""
    yield ["", "median s", "min", "p90", "n", "gantry / it", "median s, synced", "gantry / it, synced", "target"]
    base = rows[ours]["median_ms"] if ours else None
    synced = rows[ours]["synced_ms"] if ours else None
    peers = [rows[name]["median_ms"] for name in benchmark.PEERS if name in rows]
    for name, row in rows.items():
        target = ""
        if ours and name in benchmark.PEERS and row["median_ms"] == min(peers):
            target = verdict(base / row["median_ms"], benchmark.TARGET, f"{benchmark.TARGET:.2f}")
        yield [name, *(f"{row[key] / 1000:.2f}" for key in ("median_ms", "min_ms", "p90_ms")), str(row["n"]),
               ratio(base, row["median_ms"]), f"{row['synced_ms'] / 1000:.2f}", ratio(synced, row["synced_ms"]), target]


def memory_rows(benchmark, rows):
    """KiB per pod."""
    ours = {row["pods"]: row["kib_per_pod"] for name, row in rows.items() if name.startswith("gantry")}
    yield ["", "KiB per pod", "processes", "total KiB", "gantry / it", "target"]
    for name, row in rows.items():
        each, target = row.get("kib_per_pod"), ""
        if name.startswith("gantry"):
            target = verdict(each, benchmark.TARGET_KIB, f"{benchmark.TARGET_KIB} KiB")
        yield [name, f"{each:.0f}" if each is not None else "-", str(row["processes"]), str(row["total_kib"]),
               ratio(ours.get(row["pods"]), each) if each is not None else "-", target]


def table(name, benchmark, result):
    """The complete table of one benchmark."""
    rows = result["rows"]
    ours = next((row for row in rows if row.startswith("gantry")), None)
    if name in ("list", "stats"):
        # All rows are gantry's, with different sizes, so a ratio has no meaning.
        ours = None
    if name == "memory":
        lines = list(memory_rows(benchmark, rows))
    elif name == "fetch":
        lines = list(fetch_rows(benchmark, rows, ours))
    elif hasattr(benchmark, "table_rows"):
        lines = list(benchmark.table_rows(rows))
    else:
        lines = list(time_rows(benchmark, rows, ours))
    # A bar would end the cell.
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    text = [f"\n### {name}: {result['title']}" + (f" ({result['image']})" if "image" in result else ""), ""]
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        text.append("| " + " | ".join(cells) + " |")
        if number == 0:
            text.append("|" + "|".join("-" * (width + 1) + ("-" if at == 0 else ":") for at, width in
                                       enumerate(widths)) + "|")
    return "\n".join(text)
