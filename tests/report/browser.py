"""Reports in a real browser: browser.py DHELIX FOLDER

Trains small runs, draws them, and opens the pages without a window, light and dark, wide and
380 pixels narrow. Fails on anything the console says, on requests, on pages wider than the
window, on what the keyboard does not reach, and on zoom, hover or selection that do nothing; and on
lines of commands that a terminal of 80 columns would wrap.
FOLDER gets a picture of every page, and of that terminal, for people. How long redrawing takes is printed, not judged."""
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cdp  # noqa: E402
import terminal  # noqa: E402

SKIPPED = 77
JOB = """
model: {name: "small <b>&", family: gpt2, n_layers: 4, n_heads: 2, width: 32, max_seq: 32, vocab: 65}
data: {train: %s/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}
train: {steps: 12, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}
optimizer: {lr: 3.0e-3, warmup_steps: 3}
eval: {every: 4, batches: 1}
parallel: {timeout_s: 60}
""" % os.getcwd()
failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print("FAILED:", what)


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def train(dhelix, folder, name, *settings):
    out = os.path.join(folder, name)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w") as f:
        f.write(JOB)
    run(dhelix, "train", job, "--fresh", "--quiet", "--set", "out=" + out, *(w for s in settings for w in ("--set", s)))
    return out


def write_large(folder, ranks, n):
    """A trace of about n instructions a rank, with names that a page must survive."""
    rng = random.Random(1)
    os.makedirs(folder)
    names = ["linear", "</script><script>window.broken = 1</script>", "\"'&<b>\\", "norm"]
    for rank in range(ranks):
        ends, events, memory = [0, 0, 0], [], 0
        for i in range(n):
            stream = rng.choice((0, 0, 0, 1, 2))
            ends[stream] = max(ends[stream], max(ends) - 40) + rng.random() * 3
            dur = round(rng.random() * 20, 3) + 0.001
            events.append({"ph": "X", "name": rng.choice(names), "cat": rng.choice(("forward", "input-gradient", "weight-gradient")),
                           "pid": rank, "tid": stream, "ts": round(ends[stream], 3), "dur": dur,
                           "args": {"block": "layer", "out": "x", "micro_batch": i * 8 // n, "layer": i % 32, "bytes": 1000}})
            ends[stream] += dur
            memory = max(0, memory + rng.randrange(-1000, 1002))
            events.append({"ph": "C", "name": "memory", "pid": rank, "ts": round(ends[stream], 3),
                           "args": {"activations": memory, "scratch": i % 5 * 100}})
        with open(f"{folder}/trace-rank{rank}.json", "w") as f:
            json.dump({"otherData": {"rank": rank, "planned_bytes": 200000, "persistent_bytes": {"master": 50000}},
                       "traceEvents": events}, f)


def make_quickstart(dhelix, folder):
    """What quickstart.sh makes, in small: a profile, a run of each strategy, both as one page."""
    profile = os.path.join(folder, "profile.json")
    run(dhelix, "profile", os.path.join(folder, "job.yaml"), "--quiet", "--out", profile, "--set", "parallel.tp=2",
        "--set", "strategy=dhelix")
    runs = [train(dhelix, folder, "hide-" + strategy, "strategy=" + strategy, "parallel.tp=2", "trace.step=12", "profile=" + profile)
            for strategy in ("sequential", "dhelix")]
    page = os.path.join(folder, "quickstart.html")
    run(dhelix, "report", *runs, "--out", page)
    return page


def make_pages(dhelix, folder):
    mesh = ("ranks=4", "parallel.tp=2", "parallel.pp=2", "topology.nodes=2", "trace.step=8")
    pair = train(dhelix, folder, "two-strands", "strategy=dhelix", *mesh)
    split = train(dhelix, folder, "zb-h1", "parallel.schedule=zb-h1", *mesh)
    alone = train(dhelix, folder, "one-rank")
    simulated = os.path.join(folder, "simulated")
    run(dhelix, "simulate", os.path.join(folder, "job.yaml"), "--cluster", "a100", "--out", simulated, "--set", "strategy=dhelix",
        "--set", "ranks=16", "--set", "parallel.pp=2", "--set", "train.batch=32")
    table = os.path.join(folder, "table")
    run(dhelix, "simulate", os.path.join(folder, "job.yaml"), "--cluster", "a100", "--out", table, "--table",
        "parallel.tp=1,2,3", "parallel.pp=1,2")
    large = os.path.join(folder, "large <i>'\"")
    write_large(large, 4, 10000)
    shutil.copy("tests/data/published/dhelix_h100_pairwise_oef_matrix.csv", pair + "/oef.csv")
    pages = {}
    for name, runs in (("two-strands", [pair]), ("split-backward", [split]), ("one-rank", [alone]), ("simulated", [simulated]), ("table", [table]), ("large", [large]),
                       ("compared", [pair, split, alone])):
        pages[name] = os.path.join(folder, name + ".html")
        run(dhelix, "report", *runs, "--out", pages[name])
    return pages


# ---- checks -----------------------------------------------------------------------------------

FOCUSABLE = "a[href], button, select, summary, canvas, [tabindex='0']"


def check_keyboard(page, name):
    """Tab reaches everything that can be used and can be seen, and leads round again."""
    want = page.evaluate(f"[...document.querySelectorAll(\"{FOCUSABLE}\")].filter(e => e.offsetParent || e.className === 'skip').length")
    page.evaluate("document.activeElement.blur(); window.reached = new Set()")
    for _ in range(want + 3):
        page.key("Tab")
        page.evaluate("window.reached.add(document.activeElement)")
    got = page.evaluate(f"[...window.reached].filter(e => e.matches(\"{FOCUSABLE}\")).length")
    check(got == want, f"{name}: Tab reaches {got} of {want} elements")


def said(page, selector):
    return page.evaluate(f"document.querySelector('{selector} [aria-live]').textContent")


def check_timeline(page, name):
    """Zoom, pan, selection and hover of the timeline."""
    canvas = "#timeline canvas"
    span = f"(v => v.t1 - v.t0)(document.querySelector('{canvas}').view)"
    page.evaluate(f"document.querySelector('{canvas}').scrollIntoView({{block: 'center'}})")
    page.evaluate(f"document.querySelector('{canvas}').focus()")
    page.key("ArrowRight")
    first = page.evaluate("document.querySelector('#timeline .plot + .said').textContent")
    page.key("ArrowRight")
    second = page.evaluate("document.querySelector('#timeline .plot + .said').textContent")
    check(first and second and first != second, f"{name}: arrows read instructions: {first!r}, {second!r}")
    whole = page.evaluate(span)
    page.key("+")
    check(abs(page.evaluate(span) / whole - 0.5) < 0.01, f"{name}: + zooms by two")
    page.key("Enter")
    check(page.evaluate(span) < whole / 10, f"{name}: Enter zooms in on an instruction")
    page.key("0")
    check(page.evaluate(span) == whole, f"{name}: 0 shows all")
    x, y, w, h = page.box(canvas)
    page.mouse("mouseWheel", x + w / 2, y + h / 2, deltaX=0, deltaY=-240)
    page.settle()
    check(page.evaluate(span) < whole, f"{name}: the wheel zooms where the focus is")
    check_drag(page, name, x + w / 2, y + 40, span)
    tips = 0
    for i in range(40):
        page.mouse("mouseMoved", x + w * (0.2 + 0.015 * i), y + 38)
        tips += not page.evaluate("document.getElementById('tip').hidden")
    check(tips > 0, f"{name}: hovering shows an instruction")
    page.key("0")


def check_drag(page, name, x, y, span):
    before = page.evaluate("document.querySelector('#timeline canvas').view.t0"), page.evaluate(span)
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", x + 60, y, button="left", buttons=1)
    page.mouse("mouseReleased", x + 60, y, button="left", clickCount=1)
    after = page.evaluate("document.querySelector('#timeline canvas').view.t0"), page.evaluate(span)
    check(after[0] < before[0] and abs(after[1] / before[1] - 1) < 1e-6, f"{name}: dragging moves {before} {after}")


LABELS = """(view => {
    const seen = [], ctx = view.canvas.getContext('2d'), fill = ctx.fillText;
    ctx.fillText = (text, x, y) => { if (y === 9) seen.push(text); fill.call(ctx, text, x, y); };
    view.draw();
    delete ctx.fillText;
    return seen;
})(document.querySelector('#timeline canvas').view)"""


def check_reading(page, name):
    """Ticks of a zoomed axis differ; the explanation follows the keyboard; swatches can be seen."""
    view = "document.querySelector('#timeline canvas').view"
    for zoom in (1, 300, 3e5):
        page.evaluate(f"(v => v.show(v.end * 0.7, v.end * (0.7 + 0.3 / {zoom})))({view})")
        ticks = page.evaluate(LABELS)
        check(len(ticks) > 1 and len(set(ticks)) == len(ticks), f"{name}: ticks at zoom {zoom} are {ticks}")
    page.evaluate(f"{view}.show(0, {view}.end)")
    page.evaluate("document.querySelector('#timeline canvas').focus()")
    page.key("ArrowRight")
    shown = page.evaluate("document.getElementById('tip').hidden ? '' : document.querySelector('#tip b').textContent")
    check(shown and said(page, "#timeline").startswith(shown), f"{name}: the keyboard's item is explained: {shown!r}")
    page.key("Escape")
    check(page.evaluate("document.getElementById('tip').hidden"), f"{name}: Escape takes the explanation away")
    unseen = page.evaluate("""[...document.querySelectorAll('.legend i')].filter(i => {
        const s = getComputedStyle(i);
        return s.backgroundImage === 'none' && s.backgroundColor === 'rgba(0, 0, 0, 0)' && !parseFloat(s.borderTopWidth);
    }).map(i => i.className)""")
    check(unseen == [], f"{name}: swatches that nobody sees: {unseen}")


def check_facts(page, name):
    """Header and sections say the same; curves run over what is chosen."""
    header = page.evaluate("([...document.querySelectorAll('.facts dt')].find(d => d.textContent === 'schedule') || {nextSibling: {}}).nextSibling.textContent")
    intro = page.evaluate("document.querySelector('#schedule > p').textContent")
    check(not header or header in intro, f"{name}: the schedule is {header!r} above, and below: {intro!r}")
    if name.startswith("simulated"):
        ranks = page.evaluate("[...document.querySelectorAll('.facts dd')].map(d => d.textContent).find(t => t.includes(' on '))")
        check(ranks == "16 on 2 nodes of cluster a100, simulated", f"{name}: ranks are {ranks!r}")
        intro = page.evaluate("document.querySelector('#time > p').textContent")
        check(intro.startswith("The simulated step"), f"{name}: {intro!r}")
        return
    for axis in ("tokens", "training time", "steps"):
        page.evaluate(f"(s => {{ s.value = '{axis}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('#training select'))")
        titles = page.evaluate("[...document.querySelectorAll('#training h3')].map(h => h.textContent)")
        check(titles and all(f"by {axis}" in t for t in titles), f"{name}: curves by {axis}: {titles}")
    if page.evaluate("!!document.querySelector('#compare')"):
        rows = page.evaluate("[...document.querySelectorAll('#compare tbody tr')].map(r => r.textContent)")
        check(any("speed-up" in r and "times" in r for r in rows), f"{name}: no speed-up in {rows}")
        if name.startswith("compared"): # the first of three has two strands
            check(any(r.startswith("speed-up over zb-h1") for r in rows), f"{name}: not over the sequential run: {rows}")
        n, m = page.evaluate("[document.querySelectorAll('#timelines canvas').length, document.querySelectorAll('#compare thead th').length - 1]")
        check(0 < n <= m, f"{name}: {n} timelines of {m} runs")


def check_labels(page, name):
    """Labels of rows are whole, however narrow the page."""
    cut = page.evaluate("""[...document.querySelectorAll('canvas')].map(c => c.view).filter(v => v && v.owner.rows).flatMap(v => {
        const ctx = v.canvas.getContext('2d');
        ctx.font = canvasFont();
        return v.owner.rows.filter(r => r.label && ctx.measureText(r.label).width > v.left - 7).map(r => r.label);
    })""")
    check(cut == [], f"{name}: labels cut off: {cut}")


def check_theme(page, name):
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent.includes('dark')).click()")
    check(page.evaluate(background) != before, f"{name}: the button changes the theme")
    page.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent.includes('dark')).click()")


def check_tables(page, name):
    """Every figure's numbers open as a table."""
    for _ in range(2):  # some lie in others
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.settle()
    empty = page.evaluate("[...document.querySelectorAll('details')].filter(d => d.querySelectorAll('td, .track').length < 1)"
                          ".map(d => d.textContent)")
    check(empty == [], f"{name}: empty tables {empty}")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")


def check_detail(page, name):
    """Random sequences, brute force: every bar of more than 1.2 pixels is drawn once, all of it, and the
    others leave paint in their pixel."""
    page.evaluate("window.random = (s => () => (s = (s * 16807) % 2147483647) / 2147483647)(7)")
    wrong = page.evaluate("""(() => {
        for (let round = 0; round < 200; round++) {
            const start = [], end = [], cls = [];
            for (let t = 0, i = 0; i < 300; i++) {
                t += random() < 0.5 ? 0 : random() * 3;
                start.push(t);
                t += random() ** 8 * 40;
                end.push(t);
                cls.push(i % 3);
            }
            const s = new Sequence(Float64Array.from(start), Float64Array.from(end), Uint8Array.from(cls), 3);
            const t0 = random() * end[100], t1 = t0 + 20 + random() * end[299], w = 500, px = (t1 - t0) / (w - 10), rects = [];
            const g = {ctx: {fillRect: (...r) => rects.push(r)}, w, left: 10, t0, t1, px, x: t => 10 + (t - t0) / px};
            drawLane(g, s, 0, 1, ['#000000', '#000001', '#000002']);
            for (let i = 0; i < 300; i++) {
                const x = Math.max(g.x(start[i]), 10), width = Math.min(g.x(end[i]), w) - x;
                const here = rects.filter(r => r[0] <= x + 1e-6 && r[0] + r[2] > x - 1e-6 && r[0] > x - 1.01).length;
                if (width >= 1.2 ? rects.filter(r => Math.abs(r[0] - x) < 1e-9 && r[2] > width - 0.7).length !== 1 : width > 1e-3 && !here)
                    return `round ${round}, bar ${i}: x ${x}, width ${width}`;
            }
            for (let k = 0; k < 50; k++) {
                const a = random() * end[299], b = a + random() * 50;
                for (let c = 0; c < 3; c++) {
                    const want = start.reduce((all, v, i) => all + (cls[i] === c ? Math.max(0, Math.min(b, end[i]) - Math.max(a, v)) : 0), 0);
                    if (Math.abs(s.spent(c, a, b) - want) > 1e-6) return `spent ${s.spent(c, a, b)}, not ${want}`;
                }
            }
        }
    })()""")
    check(wrong is None, f"{name}: level of detail: {wrong}")


def report_speed(page, name):
    """Milliseconds from frame to frame while the timeline moves at several zooms, and those of the script."""
    script, frame = page.evaluate("""(async () => {
        const v = document.querySelector('#timeline canvas').view, frames = [], scripts = [];
        const next = () => new Promise(requestAnimationFrame);
        for (let k = 0; k < 48; k++) {
            const span = v.end / 2 ** (k % 12), at = (v.end - span) * k / 48, from = await next();
            v.show(at, at + span);
            const t = performance.now();
            v.draw();
            scripts.push(performance.now() - t);
            frames.push(await next() - from);
        }
        v.show(0, v.end);
        return [scripts, frames].map(list => list.sort((a, b) => a - b)).map(list => [list[24], list[47]]);
    })()""")
    n = page.evaluate("document.querySelector('#timeline canvas').view.owner.rows.reduce((n, r) => n + r.seq.n, 0)")
    print(f"{name}: {n} instructions; redraw {script[0]:.1f} ms of script (most {script[1]:.1f}), "
          f"a frame {frame[0]:.1f} ms (most {frame[1]:.1f}); a screen of 60 Hz has 16.7 ms")


def check_page(browser, name, path, folder):
    """Light, wide and narrow; the first page dark too, all of them with DHELIX_TEST_DEEP."""
    dark_too = name == "two-strands" or os.environ.get("DHELIX_TEST_DEEP")
    for width, height, dark in ((1280, 900, False), (1280, 900, True), (380, 800, False), (380, 800, True)):
        if dark and not dark_too:
            continue
        look = f"{name}-{width}-{'dark' if dark else 'light'}"
        page = browser.open("file://" + path, width, height, dark, touch=width < 500)
        page.settle()
        page.settle()
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        check(wide == [width, width], f"{look}: the page is {wide} pixels wide")
        check(page.evaluate("document.title.endsWith('dhelix report')"), f"{look}: the script ran to its end")
        page.screenshot(os.path.join(folder, look + ".png"))
        if not dark:
            check_keyboard(page, look)
            check_theme(page, look)
        check_tables(page, look)
        if not dark:
            check_labels(page, look)
        if not dark and width == 1280 and page.evaluate("!!document.querySelector('#timeline canvas')"):
            check_reading(page, look)
            if name != "large":
                check_facts(page, look)
            check_timeline(page, look)
            check_detail(page, look)
            report_speed(page, name)
        check(page.evaluate("window.broken === undefined"), f"{look}: a name was run as a script")
        complaints = page.complaints()
        check(complaints == [], f"{look}: {complaints[:5]}")
        page.close()


def check_nothing_absent(browser, path):
    """Every section of every run has its content, the profile that operators were ordered by too."""
    page = browser.open("file://" + path, 1280, 900, False, touch=False)
    page.settle()
    for i in range(2):
        page.evaluate(f"(s => {{ s.selectedIndex = {i}; s.dispatchEvent(new Event('change')); }})(document.querySelector('#run select'))")
        page.settle()
        absent = page.evaluate("[...document.querySelectorAll('.absent')].map(e => e.textContent)")
        check(absent == [], f"quickstart, run {i}: absent {absent}")
        there = page.evaluate("[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.getAttribute('href'))).map(a => a.textContent)")
        check(there == [], f"quickstart, run {i}: links to sections that are not there: {there}")
        cells = page.evaluate("document.querySelectorAll('#oef canvas, #oef rect, #oef td').length")
        check(cells > 0, f"quickstart, run {i}: no pair of the profile is drawn")
    page.close()


def check_terminal(browser, dhelix, folder):
    """A command a screen, on 80 columns."""
    job, plain = os.path.join(folder, "job.yaml"), "job.yaml"
    cluster = ("--cluster", "a100", "--ranks", "8")
    for name, *commands in (("train", ("train", job, "--fresh", "--set", "out=" + os.path.join(folder, "watched"))),
                            ("plan", ("check", job), ("simulate", job, *cluster, "--strategies", "sequential,dhelix,flux"),
                             ("tune", job, "--cluster", "a100", "--devices", "8", "--strategies", "sequential", "--verify", "1")),
                            ("help", ("help",), ("help", "parallel.tp"), ("list", "clusters"))):
        path = os.path.join(folder, f"terminal-{name}.html")
        long = terminal.page([("dhelix " + " ".join(words).replace(job, plain), (dhelix, *words)) for words in commands], path)
        long = [line for line in long if folder not in line]
        check(long == [], f"terminal, {name}: longer than {terminal.COLUMNS} columns: {long}")
        page = browser.open("file://" + path, 700, 900)
        page.settle()
        page.screenshot(path.replace(".html", ".png"))
        page.close()


def main():
    dhelix, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    browser_path = cdp.find()
    if not browser_path:
        print("no browser: one of", ", ".join(cdp.NAMES), "or DHELIX_BROWSER")
        sys.exit(SKIPPED)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    pages, quickstart = make_pages(dhelix, folder), make_quickstart(dhelix, folder)
    with cdp.Browser(browser_path) as browser:
        for name, path in pages.items():
            check_page(browser, name, path, folder)
        check_nothing_absent(browser, quickstart)
        check_terminal(browser, dhelix, folder)
    print(f"pictures in {folder}; {len(failures)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
