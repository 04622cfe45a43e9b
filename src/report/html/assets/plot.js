// Curves: memory over the step, losses over steps.

// series: {label, x, y, colour: () => c}, and where wanted dash, base (filled from there),
// alpha, points, thin. Curves of memory hold their value until the next (steps).
class Plot {
  constructor(name, series, {steps = false, low = 0, high, unit = 1, say = digits, at = t => time(t), height = 210, mark, ...options}) {
    Object.assign(this, {series, steps, say, at, unit, mark, full: height});
    const all = series.flatMap(s => [...s.y].filter(Number.isFinite)), most = high || all.reduce((a, b) => Math.max(a, b), -Infinity);
    this.low = Math.min(low, all.reduce((a, b) => Math.min(a, b), most));
    this.high = most + (most - this.low || 1) * 0.05;
    this.xs = [...new Set(series.filter(s => !s.thin).flatMap(s => [...s.x]))].sort((a, b) => a - b);
    this.view = new TimeView(this, name, options);
    this.node = this.view.node;
  }
  height() { return this.full; }
  y(v) { return this.full - 10 - (v - this.low) / (this.high - this.low) * (this.full - RULER - 20); }
  item(i) { return i < 0 ? null : {i, t0: this.xs[i], t1: this.xs[Math.min(i + 1, this.xs.length - 1)]}; }
  hit(t) {
    const i = lowerBound(this.xs, t, true);
    return this.item(this.steps || i && t - this.xs[i - 1] < this.xs[i] - t || i === this.xs.length ? i - 1 : i);
  }
  move(item, dx) { return this.item(clamp(item ? item.i + dx : lowerBound(this.xs, this.view.t0), 0, this.xs.length - 1)); }
  about({t0}) {
    const value = s => { const i = lowerBound(s.x, t0, true) - 1; return i < 0 || !this.steps && s.x[i] !== t0 || s.y[i] == null ? null : s.y[i] - (s.base || 0); };
    return {title: this.at(t0), rows: this.series.filter(s => s.label && value(s) != null).map(s => [s.label, this.say(value(s))])};
  }
  draw(g) {
    const {ctx} = g;
    for (const s of this.series) {
      ctx.fillStyle = ctx.strokeStyle = s.colour();
      ctx.globalAlpha = s.alpha || 1;
      if (s.points) this.drawPoints(g, s);
      else if (this.steps) this.drawSteps(g, s);
      else this.drawLine(g, s);
      ctx.globalAlpha = 1;
    }
    this.axis(g);
    ctx.fillStyle = palette.focus;
    for (const item of [g.hover, g.item]) if (item && g.x(item.t0) >= g.left) ctx.fillRect(g.x(item.t0), RULER, item === g.item ? 2 : 1, this.full);
  }
  drawPoints(g, s) {
    g.ctx.strokeStyle = palette.fg;
    s.x.forEach((x, i) => {
      if (x < g.t0 || x > g.t1) return;
      g.ctx.beginPath();
      g.ctx.arc(g.x(x), this.y(s.y[i]), 4, 0, 7);
      g.ctx.fill();
      g.ctx.stroke();
    });
  }
  // The least and the most of every pixel, where several values fall into one.
  drawLine(g, s) {
    const {ctx} = g;
    ctx.setLineDash(s.dash || []);
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    for (let i = Math.max(lowerBound(s.x, g.t0) - 1, 0); i < s.x.length && (!i || s.x[i - 1] <= g.t1);) {
      const x = g.x(s.x[i]), end = Math.max(lowerBound(s.x, s.x[i] + g.px), i + 1), some = s.y.slice(i, end).filter(v => v != null);
      if (some.length && x >= g.left - 1) { ctx.lineTo(x, this.y(Math.min(...some))); ctx.lineTo(x, this.y(Math.max(...some))); }
      i = end;
    }
    ctx.stroke();
    ctx.setLineDash([]);
  }
  // The most of every pixel: a peak never disappears.
  drawSteps(g, s) {
    const {ctx} = g, base = this.y(s.base || 0);
    let i = Math.max(lowerBound(s.x, g.t0, true) - 1, 0);
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let x = g.left; x < g.w; x++) {
      const until = g.t0 + (x + 1 - g.left) * g.px;
      let most = s.x[i] > until ? s.base || 0 : s.y[i];
      while (i + 1 < s.x.length && s.x[i + 1] < until) most = Math.max(most, s.y[++i]);
      if (s.thin) ctx.lineTo(x, this.y(most)); else ctx.fillRect(x, this.y(most), 1, base - this.y(most));
    }
    if (s.thin) ctx.stroke();
  }
  axis(g) {
    const {ctx} = g, step = niceStep((this.high - this.low) / this.unit / 4) * this.unit;
    ctx.textAlign = 'right';
    for (let v = Math.ceil(this.low / step) * step; v <= this.high; v += step) {
      ctx.fillStyle = palette.muted;
      ctx.fillText(this.say(Math.abs(v) < step / 1e6 ? 0 : v), g.left - 7, this.y(v));
      ctx.globalAlpha = 0.22;
      ctx.fillRect(g.left, Math.round(this.y(v)), g.w, 1);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = palette.fg;
    for (let x = g.left; this.mark && x < g.w; x += 10) ctx.fillRect(x, this.y(this.mark), 6, 1);
  }
}

// ---- memory

const persistentParts = [['parameters', ['master', 'copy']], ['gradients', ['grad']], ['optimizer', ['adam.m', 'adam.v']], ['sums', ['state', 'kv']]];

function memoryOf(rank) {
  const of = rank.bytes.persistent_bytes || {}, {activations, scratch} = rank.memory;
  const parts = persistentParts.map(([name, kinds]) => [name, sum(kinds.map(k => of[k] || 0))]), base = sum(parts.map(p => p[1]));
  const total = activations.map((a, i) => base + a + scratch[i]);
  return {rank, parts, base, total, planned: rank.bytes.planned_bytes || 0, peak: total.reduce((a, b) => Math.max(a, b), base)};
}

const shades = [0.9, 0.65, 0.45, 0.3];

// What stays at the bottom, activations above it, scratch on top; other ranks as thin lines.
function memoryPlot(all, m, end) {
  const {t, activations} = m.rank.memory, high = all.reduce((a, r) => Math.max(a, r.peak, r.planned), 0);
  let base = 0;
  const flat = m.parts.map(([label, n], k) => {
    base += n;
    return {label, x: [0], y: [base], base: base - n, colour: () => palette.o, alpha: shades[k]};
  }).filter(s => s.y[0] > s.base);
  const others = all.filter(r => r !== m).map(r => ({x: r.rank.memory.t, y: r.total, base: r.base, thin: true, colour: () => palette.muted, alpha: 0.6}));
  return new Plot(`Memory of rank ${m.rank.rank} over the step`, [...flat, {x: t, y: m.total, base, colour: () => palette.w},
    {label: 'activations', x: t, y: activations.map(a => base + a), base, colour: () => palette.f}, ...others,
    {label: 'in use', x: t, y: m.total, thin: true, colour: () => palette.fg, alpha: 0.01}],
  {steps: true, high, unit: 2 ** (10 * Math.floor(Math.log2(high || 1) / 10)), say: bytes, end, left: 76, height: 290, mark: m.planned});
}

function memoryPart(run, timeline) {
  const all = run.trace.ranks.filter(r => r.memory && r.bytes).map(memoryOf), box = el('div');
  if (!all.length) return absent('The trace has no memory counters; a new one has: ', code('--set trace.step=N'), '.');
  const choice = el('select', {onchange: () => show(all[choice.selectedIndex])}, all.map(m => el('option', {}, 'rank ' + m.rank.rank)));
  const show = m => {
    const {view} = memoryPlot(all, m, run.trace.end);
    timeline.partners = [view];
    view.partners = [timeline];
    view.show(timeline.t0, timeline.t1, true);
    view.tools.append(el('label', {}, 'Rank', choice));
    box.replaceChildren(legend([['c-f', 'activations'], ['c-w', 'scratch'], ...m.parts.map(([name, n], k) => n && ['c-o', `${name} ${bytes(n)}`, 'opacity:' + shades[k]]).filter(Boolean)],
      `dashed: planned, ${bytes(m.planned)}${all.length > 1 ? '; thin: other ranks' : ''}`), view.node);
  };
  choice.selectedIndex = all.indexOf(all.reduce((a, b) => b.peak > a.peak ? b : a));
  show(all[choice.selectedIndex]);
  return el('div', {}, box, tableBelow('Numbers', () => table(['rank', ...persistentParts.map(p => p[0]), 'most of the rest', 'most in all', 'planned'],
    all.map(m => ['rank ' + m.rank.rank, ...m.parts.map(p => bytes(p[1])), ...[m.peak - m.base, m.peak, m.planned].map(bytes)]))));
}

// ---- training

const runColour = k => [palette.f, palette.b, palette.local, palette.cross, palette.w, palette.fg][k % 6];
const runDash = k => [[], [7, 5], [2, 4], [9, 3, 2, 3]][k % 4]; // where curves coincide, the lower ones show between
const quantities = {loss: ['Loss', 'nats per token'], lr: ['Learning rate', ''], grad_norm: ['Gradient norm', ''], tokens_per_s: ['Tokens per second', ''],
  aux_loss: ['Load-balancing loss', '']};
// What curves may run over: where a run's rows lie on it, and how a place there reads.
const axes = {
  steps: {of: r => r.metrics.step, at: x => 'step ' + countTick(x, 1), format: x => countTick(x, 1), least: 1},
  tokens: {of: r => r.sizes && r.metrics.step.map(s => s * r.sizes.tokens), at: x => countTick(x, 1) + ' tokens', format: countTick, least: 1},
  'training time': {of: r => r.metrics.step_ms && elapsed(r.metrics), at: x => time(x) + ' of training', format: timeTick},
};
// Nanoseconds of training up to each row, validation and saving left out.
function elapsed({step, step_ms, stride}) {
  let ns = 0;
  return step.map((s, i) => ns += (step_ms[i] || 0) * 1e6 * (i ? s - step[i - 1] : Math.min(s, stride)));
}
// Where a validation lies: at the row of its step, or the last before it.
const placeOf = (r, xs, step) => xs[Math.max(lowerBound(r.metrics.step, step, true) - 1, 0)];

function trainingPlots(runs, axis) {
  const with_ = key => runs.filter(r => r.metrics[key] && r.metrics[key].length);
  return Object.keys(quantities).filter(key => with_(key).length).map(key => {
    const [title, unit] = quantities[key], loss = key.includes('loss');
    const label = (r, what) => runs.length > 1 ? r.label + what : (title + what).toLowerCase();
    const series = with_(key).flatMap(r => {
      const {metrics: m, index} = r, x = axes[axis].of(r);
      return [{label: label(r, ''), x, y: m[key], colour: () => runColour(index), dash: runDash(index)},
        key === 'loss' && m.val.length && {label: label(r, ', validation'), points: true, x: m.val.map(v => placeOf(r, x, v[0])), y: m.val.map(v => v[1]), colour: () => runColour(index)}].filter(Boolean);
    });
    const name = [title, unit && ', ' + unit, `, by ${axis}`, series.some(s => s.points) && '; circles: validation'].filter(Boolean).join('');
    return el('figure', {class: key === 'loss' && 'wide'}, el('h3', {}, name), new Plot(name, series, {low: loss ? Infinity : 0, end: 1.01 * Math.max(...series.map(s => s.x[s.x.length - 1])),
      left: 56, ...axes[axis], tools: false}).node);
  });
}

// A line as a run's curve is drawn.
function swatchOf(r) {
  const line = el('i', {class: 'line'});
  repaint(() => line.style.borderTop = `2px ${['solid', 'dashed', 'dotted'][r.index % 4] || 'dashed'} ${runColour(r.index)}`);
  return line;
}

function trainingPart(all) {
  const runs = all.filter(r => r.metrics && r.metrics.step.length), box = el('div', {class: 'grid'});
  if (!runs.length) return absent('No ', code('metrics.jsonl'), ' in the run folder: training writes a line a step.');
  const possible = Object.keys(axes).filter(name => runs.every(r => axes[name].of(r)));
  const choice = el('select', {onchange: () => show()}, possible.map(name => el('option', {}, name)));
  const show = () => box.replaceChildren(...trainingPlots(runs, possible[choice.selectedIndex]));
  const notes = [...runs.filter(r => r.metrics.stride > 1).map(r => `${r.label}: each point is the mean of ${r.metrics.stride} steps. `),
    ...runs.filter(r => r.metrics.cut).map(r => `${r.label}: the last line is not whole; the run is under way, or was killed. `)];
  show();
  return el('div', {}, el('div', {class: 'tools'}, el('label', {}, 'By', choice)), runs.length > 1 && el('ul', {class: 'legend'}, runs.map(r => el('li', {}, swatchOf(r), r.label))),
    box, notes.length > 0 && el('p', {class: 'keys'}, notes));
}
