"""results.md: the results as a page, what is wrong first."""
import parts


def counts(results):
    n = {}
    for check in results["checks"]:
        n[check["status"]] = n.get(check["status"], 0) + 1
    return n


def summary(results):
    """One line."""
    n = counts(results)
    return ", ".join(f"{n[key]} {word}" for key, word in (("passed", "passed"), ("failed", "FAILED"), ("skipped", "left out"),
                                                          ("no time", "without time (--continue)")) if key in n) or "nothing ran"


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def machine(m):
    names = [("gpu", "GPU"), ("memory", "memory"), ("capability", "compute capability"), ("driver", "driver"), ("processor", "processor"),
             ("system", "system"), ("glibc", "C library"), ("dhelix", "program"), ("wgmma", "attention by wgmma")]
    rows = [(word, m[key]) for key, word in names if key in m]
    rows += [(name, place) for name, place in m.get("libraries", {}).items()]
    if "torch" in m:
        rows.append(("PyTorch", f"{m['torch']['version']}, CUDA {m['torch']['cuda']}"))
    rows += list(m.get("peaks", {}).items())
    return table(["machine", ""], rows)


def wrong(results):
    """First of all: what failed, in its own words."""
    failed = [c for c in results["checks"] if c["status"] == "failed"]
    if not failed:
        return ["Nothing failed."]
    lines = [f"**{len(failed)} failed.** The first: {failed[0]['part']}, {failed[0]['name']}: {failed[0]['message']}", ""]
    rows = [(c["part"], c["name"], c["message"], c.get("log", "")) for c in failed]
    return lines + table(["part", "check", "what was wrong", "log"], rows)


def slow(results):
    """Kernels below half of what the machine does, and where steps go."""
    lines = []
    for check in results["checks"]:
        figures = check.get("figures", {})
        rows = [r for r in figures.get("rates", []) if r.get("of_peak", 1) < 0.5]
        if rows:
            rows.sort(key=lambda r: r["of_peak"])
            lines += ["### Below half of the measured peak", ""]
            lines += table(["model", "kernel", "rate", "of the peak"],
                           [(r["model"], r["case"], f"{r['rate']:.4g} {r['unit']}", f"{r['of_peak']:.0%}") for r in rows]) + [""]
        if figures.get("operators"):
            share = sorted(figures["operators"].items(), key=lambda i: -i[1])[:12]
            lines += [f"### Where a step goes: {check['name']}", ""]
            lines += table(["operator", "share"], [(name, f"{part:.1%}") for name, part in share]) + [""]
    return lines


def errors(results):
    rows = []
    for check in results["checks"]:
        rows += [(check["name"], r["call"], r["what"], r["type"], f"{r['largest']:.2g}", f"{r['tolerance']:.2g}")
                 for r in check.get("figures", {}).get("errors", [])[:5]]
    return (["## Largest errors", ""] + table(["suite", "call", "result", "type", "error", "tolerance"], rows) + [""]) if rows else []


def rates(results):
    rows = [r for c in results["checks"] for r in c.get("figures", {}).get("rates", [])]
    if not rows:
        return []
    return ["## Rates", ""] + table(["model", "kernel", "rate", "of the peak", "ms"],
                                    [(r["model"], r["case"], f"{r['rate']:.4g} {r['unit']}", f"{r['of_peak']:.0%}" if "of_peak" in r else "",
                                      f"{r['ms']:.4g}") for r in rows]) + [""]


def markdown(results):
    m = results["machine"]
    lines = ["# dhelix on " + m.get("gpu", "a machine without a GPU"), "", summary(results) + ".", ""]
    if any(call["small"] for call in results["calls"]):
        lines += ["**A rehearsal: small sizes, few checks. Its times say nothing.**", ""]
    lines += ["## What is wrong", ""] + wrong(results) + [""] + machine(m) + [""]
    for part in parts.PARTS:
        rows = [(c["status"], c["name"], c["message"], c["seconds"]) for c in results["checks"] if c["part"] == part.name]
        if rows:
            lines += [f"## {part.title}", ""] + table(["", "check", "", "s"], rows) + [""]
    lines += errors(results) + rates(results)
    sluggish = slow(results)
    if sluggish:
        lines += ["## What is slow", ""] + sluggish
    return "\n".join(lines)
