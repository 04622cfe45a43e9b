// Bytes of a rank over the step: what stays, what comes and goes, what was planned.

const persistentParts = [['parameters', ['master', 'copy']], ['gradients', ['grad']], ['optimizer', ['adam.m', 'adam.v']], ['sums', ['state', 'kv']]];

class Memory {
  constructor(run) {
    this.run = run;
    this.ranks = run.trace.ranks.filter(r => r.memory && r.bytes);
    for (const r of this.ranks) {
      const of = r.bytes.persistent_bytes || {};
      r.parts = persistentParts.map(([name, kinds]) => [name, sum(kinds.map(k => of[k] || 0))]);
      r.base = sum(r.parts.map(p => p[1]));
      r.total = r.memory.activations.map((a, i) => r.base + a + r.memory.scratch[i]);
      r.peak = r.total.reduce((a, b) => Math.max(a, b), r.base);
    }
    this.most = Math.max(...this.ranks.map(r => Math.max(r.peak, r.bytes.planned_bytes || 0)));
    this.rank = this.ranks.reduce((a, b) => b.peak > a.peak ? b : a);
    this.view = new TimeView(this, {name: 'Memory over the step', end: run.trace.end, left: innerWidth < 600 ? 58 : 96, keys: false});
    const choice = el('select', {onchange: () => { this.rank = this.ranks[choice.selectedIndex]; this.view.select(null); this.list(); }},
      this.ranks.map(r => el('option', {selected: r === this.rank}, 'rank ' + r.rank)));
    this.view.tools.append(el('label', {}, 'Rank', choice));
    this.key = el('div', {});
    this.list();
    this.node = el('div', {}, this.key, this.view.node, tableBelow('Numbers', () => table(['rank', ...persistentParts.map(p => p[0]), 'most of activations and scratch', 'most in all', 'planned'],
      this.ranks.map(r => ['rank ' + r.rank, ...r.parts.map(p => bytes(p[1])), bytes(r.peak - r.base), bytes(r.peak), bytes(r.bytes.planned_bytes)]))));
  }
  // From below: what is always there, then activations, then scratch.
  layers() {
    const {c} = this, shades = [0.85, 0.6, 0.4, 0.3];
    return [...this.rank.parts.map(([name, n], k) => ({name, n, colour: c.o, alpha: shades[k]})),
      {name: 'activations', colour: c.f, alpha: 0.85}, {name: 'scratch', colour: c.w, alpha: 0.9}];
  }
  list() {
    this.c = palette;
    this.key.replaceChildren(el('ul', {class: 'legend'}, this.layers().filter(l => l.n !== 0).map(l => {
      const swatch = el('i', {class: {activations: 'c-f', scratch: 'c-w'}[l.name] || 'c-o'});
      swatch.style.opacity = l.alpha;
      return el('li', {}, swatch, l.name + (l.n ? ' ' + bytes(l.n) : ''));
    }), el('li', {}, 'dashed: planned for the rank, ', bytes(this.rank.bytes.planned_bytes)), this.ranks.length > 1 && el('li', {}, 'thin: other ranks')));
  }
  height() { return 300; }
  y(n) { return 290 - n / (this.most * 1.04) * (290 - RULER - 8); }
  index(t) { return lowerBound(this.rank.memory.t, t, true) - 1; }
  hit(x) {
    const i = x < this.view.left ? -1 : this.index(this.view.time(x)), {t} = this.rank.memory;
    return i < 0 ? null : {i, t0: t[i], t1: i + 1 < t.length ? t[i + 1] : this.run.trace.end};
  }
  about({i, t0}) {
    const r = this.rank, m = r.memory;
    return {title: bytes(r.total[i]) + ' in use', rows: [['rank', r.rank], ['at', time(t0)], ['activations', bytes(m.activations[i])], ['scratch', bytes(m.scratch[i])],
      ['always there', bytes(r.base)], ['of planned', percent(r.total[i] / r.bytes.planned_bytes)]]};
  }
  move(item, dx) {
    const {t} = this.rank.memory, i = clamp(item ? item.i + dx : Math.max(this.index(this.view.t0), 0), 0, t.length - 1);
    return {i, t0: t[i], t1: i + 1 < t.length ? t[i + 1] : this.run.trace.end};
  }
  // Highest value of a pixel at a time: a peak never disappears.
  steps(g, rank, value, f) {
    const {t} = rank.memory;
    let i = Math.max(lowerBound(t, g.t0, true) - 1, 0);
    for (let x = Math.floor(g.left); x < g.w; x++) {
      const until = g.t0 + (x + 1 - g.left) * g.px;
      let most = t[i] > until ? 0 : value(i);
      while (i + 1 < t.length && t[i + 1] < until) most = Math.max(most, value(++i));
      f(x, most);
    }
  }
  draw(g) {
    this.c = g.c;
    const {ctx, c} = g, {memory, parts, bytes: planned} = this.rank;
    let below = 0;
    for (const layer of this.layers().filter(l => l.n)) {
      ctx.globalAlpha = layer.alpha;
      ctx.fillStyle = layer.colour;
      ctx.fillRect(g.left, this.y(below + layer.n), g.w - g.left, this.y(below) - this.y(below + layer.n));
      below += layer.n;
    }
    ctx.globalAlpha = 0.9;
    ctx.fillStyle = c.w;
    this.steps(g, this.rank, i => below + memory.activations[i] + memory.scratch[i], (x, n) => n > below && ctx.fillRect(x, this.y(n), 1, this.y(below) - this.y(n)));
    ctx.globalAlpha = 1;
    ctx.fillStyle = c.f;
    this.steps(g, this.rank, i => below + memory.activations[i], (x, n) => n > below && ctx.fillRect(x, this.y(n), 1, this.y(below) - this.y(n)));
    for (const r of this.ranks) if (r !== this.rank) this.line(g, r);
    this.axis(g, planned.planned_bytes);
    for (const item of [g.hover, g.item]) if (item) {
      ctx.fillStyle = c.focus;
      ctx.fillRect(g.x(item.t0), RULER, item === g.item ? 2 : 1, 290 - RULER);
    }
  }
  line(g, rank) {
    g.ctx.strokeStyle = g.c.muted;
    g.ctx.globalAlpha = 0.6;
    g.ctx.beginPath();
    this.steps(g, rank, i => rank.total[i], (x, n) => g.ctx.lineTo(x, this.y(Math.max(n, rank.base))));
    g.ctx.stroke();
    g.ctx.globalAlpha = 1;
  }
  axis(g, planned) {
    const {ctx, c} = g;
    ctx.fillStyle = c.muted;
    ctx.textAlign = 'right';
    const unit = 2 ** (10 * Math.floor(Math.log2(this.most) / 10)), step = niceStep(this.most / unit / 4) * unit;
    for (let n = 0; n <= this.most; n += step) {
      ctx.fillText(bytes(n), g.left - 6, this.y(n));
      ctx.globalAlpha = 0.35;
      ctx.fillRect(g.left, Math.round(this.y(n)), g.w - g.left, 1);
      ctx.globalAlpha = 1;
    }
    ctx.strokeStyle = c.fg;
    ctx.setLineDash([6, 4]);
    ctx.beginPath();
    ctx.moveTo(g.left, this.y(planned));
    ctx.lineTo(g.w, this.y(planned));
    ctx.stroke();
    ctx.setLineDash([]);
  }
}
