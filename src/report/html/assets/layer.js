// One layer, two strands: what its forward and the backward that ran with it did at the
// same moments (as figure 10 of the DHelix paper draws a pairing).

// Instructions of each (rank, layer, micro-batch, direction), in order of time.
function layerPasses(trace) {
  const passes = new Map();
  for (const rank of trace.ranks)
    for (const s of rank.streams)
      for (let i = 0; i < s.n; i++) {
        if (s.layer[i] < 0 || s.mb[i] < 0) continue;
        const back = s.cls[i] !== FORWARD, key = [rank.rank, s.layer[i], s.mb[i], back].join();
        if (!passes.has(key)) passes.set(key, {rank, layer: s.layer[i], mb: s.mb[i], back, parts: [], t0: Infinity, t1: 0});
        const p = passes.get(key);
        p.parts.push([s, i]);
        p.t0 = Math.min(p.t0, s.start[i]);
        p.t1 = Math.max(p.t1, s.end[i]);
      }
  return [...passes.values()];
}

const together = (a, b) => Math.max(0, Math.min(a.t1, b.t1) - Math.max(a.t0, b.t0));

// For every forward the backward of its rank that it shares most time with, best first.
function findPairs(passes) {
  const backs = new Map(), pairs = [];
  for (const p of passes) if (p.back) backs.set(p.rank, [...backs.get(p.rank) || [], p]);
  for (const list of backs.values()) list.sort((a, b) => a.t0 - b.t0);
  for (const f of passes) {
    if (f.back) continue;
    let best = null;
    for (const b of backs.get(f.rank) || []) {
      if (b.t0 > f.t1) break;
      if (together(f, b) > (best ? together(f, best) : 0)) best = b;
    }
    if (best) pairs.push({f, b: best, part: together(f, best) / Math.max(f.t1 - f.t0, best.t1 - best.t0)});
  }
  return pairs.filter(p => p.part > 0.25).sort((x, y) => y.part - x.part);
}

// Strands over time, each by stream, and between them what the rank was doing.
class Strands {
  constructor(rank, passes, name) {
    this.rank = rank;
    this.passes = passes;
    this.t0 = Math.min(...passes.map(p => p.t0));
    const end = Math.max(...passes.map(p => p.t1)) - this.t0;
    this.rows = [];
    let y = RULER + 8;
    passes.forEach((pass, k) => {
      if (k === 1) { this.band = y; y += 26; }
      for (let stream = 0; stream < 3; stream++) {
        const parts = pass.parts.filter(([s]) => s.stream === stream).sort((a, b) => a[0].start[a[1]] - b[0].start[b[1]]);
        if (!parts.length && stream) continue;
        this.rows.push({pass, stream, parts, y});
        y += 26;
      }
      y += 4;
    });
    if (passes.length === 1) { this.band = y; y += 22; }
    this.full = y + 4;
    this.view = new TimeView(this, {name, end, left: innerWidth < 600 ? 58 : 110, keys: false});
    this.node = this.view.node;
  }
  height() { return this.full; }
  item(row, k) {
    const [s, i] = row.parts[k];
    return {row, k, s, i, t0: s.start[i] - this.t0, t1: s.end[i] - this.t0};
  }
  hit(x, y) {
    const t = this.view.time(x) + this.t0, row = this.rows.find(r => y >= r.y && y < r.y + 24);
    const k = row ? row.parts.findIndex(([s, i]) => s.start[i] <= t && s.end[i] >= t) : -1;
    return k < 0 || x < this.view.left ? null : this.item(row, k);
  }
  about({s, i}) { return {title: title(s, i), rows: [...facts(this.rank, s, i), ['beside', this.beside(s, i).join(', ') || 'nothing']]}; }
  move(item, dx, dy) {
    if (!item) return this.item(this.rows[0], 0);
    if (dx) return this.item(item.row, clamp(item.k + dx, 0, item.row.parts.length - 1));
    const row = this.rows[this.rows.indexOf(item.row) + dy];
    if (!row || !row.parts.length) return null;
    const k = row.parts.findIndex(([s, i]) => s.end[i] - this.t0 > item.t0);
    return this.item(row, k < 0 ? row.parts.length - 1 : k);
  }
  // What ran on the rank's other streams at the same time.
  beside(s, i) {
    const names = [];
    for (const other of this.rank.streams) {
      if (other === s) continue;
      for (let k = other.from(s.start[i]); k < other.n && other.start[k] < s.end[i]; k++)
        names.push(`${title(other, k)} (${other.cls[k] === FORWARD ? 'F' : 'B'}${other.mb[k] >= 0 ? other.mb[k] : ''})`);
    }
    return [...new Set(names)];
  }
  draw(g) {
    const {ctx, c} = g, links = [null, c.local, c.cross];
    ctx.save();
    ctx.translate(0, -g.top);
    for (const row of this.rows) {
      ctx.fillStyle = c.panel;
      ctx.fillRect(g.left, row.y, g.w - g.left, 24);
      ctx.fillStyle = row.stream ? c.muted : c.fg;
      ctx.textAlign = 'right';
      const who = (row.pass.back ? 'B' : 'F') + row.pass.mb;
      ctx.fillText(row.stream ? streamNames[row.stream] : g.left < 80 ? who : who + ' compute', g.left - 6, row.y + 12);
      ctx.textAlign = 'left';
      this.drawOthers(g, row);
      for (const [s, i] of row.parts) {
        const [x, w] = barOf(g, s.start[i] - this.t0, s.end[i] - this.t0);
        if (w <= 0) continue;
        const colour = links[row.stream] || phaseColours()[s.cls[i]];
        ctx.fillStyle = colour;
        ctx.fillRect(x, row.y, Math.max(w - 0.5, 0.7), 24);
        if (row.stream) { ctx.fillStyle = phaseColours()[s.cls[i]]; ctx.fillRect(x, row.y + 20, Math.max(w - 0.5, 0.7), 4); }
        barText(ctx, s.kind[i].name, x, row.y + 11, w, inkOn(colour));
      }
    }
    this.drawBand(g);
    for (const item of [g.hover, g.item]) if (item) {
      const [x, w] = barOf(g, item.t0, item.t1);
      outline(g, x, item.row.y, Math.max(w, 1), 24, item === g.item);
    }
    ctx.restore();
  }
  // What the stream did beside this layer, faintly.
  drawOthers(g, row) {
    const s = this.rank.streams[row.stream], shifted = {...g, x: t => g.x(t - this.t0)};
    g.ctx.globalAlpha = 0.16;
    g.ctx.fillStyle = g.c.muted;
    for (let i = s.from(g.t0 + this.t0); i < s.n && s.start[i] < g.t1 + this.t0; i++) {
      const [x, w] = barOf(shifted, s.start[i], s.end[i]);
      g.ctx.fillRect(x, row.y + 9, w, 6);
    }
    g.ctx.globalAlpha = 1;
  }
  drawBand(g) {
    const {ctx, c} = g, s = this.rank.states, colours = [c.compute, c.hidden, c.exposed, null];
    ctx.fillStyle = c.muted;
    ctx.textAlign = 'right';
    ctx.fillText('rank', g.left - 6, this.band + 8);
    ctx.textAlign = 'left';
    drawLane({...g, t0: g.t0 + this.t0, t1: g.t1 + this.t0, x: t => g.x(t - this.t0)}, s, this.band + 1, 15, colours);
  }
}

class LayerView {
  constructor(run) {
    this.passes = layerPasses(run.trace);
    this.pairs = findPairs(this.passes).slice(0, 400);
    this.choice = el('select', {onchange: () => this.show(this.options[this.choice.selectedIndex])});
    this.box = el('div', {});
    this.options = this.pairs.length ? this.pairs : this.singles();
    this.options.forEach(o => this.choice.append(el('option', {}, this.name(o))));
    this.node = el('div', {}, this.options.length ? [el('div', {class: 'tools'}, el('label', {}, 'Layer', this.choice)),
      legend([['c-f', 'forward'], ['c-b', 'input gradient'], ['c-w', 'weight gradient'], ['c-local', 'local communication'], ['c-cross', 'cross communication'],
        ['p-compute', 'computation alone'], ['p-hidden', 'communication hidden'], ['p-exposed', 'communication exposed']]), this.box]
      : absent('The trace has no instruction of a layer.'));
    if (this.options.length) this.show(this.options[0]);
  }
  // Without co-execution: a forward and its own backward.
  singles() {
    const of = new Map(this.passes.map(p => [[p.rank.rank, p.layer, p.mb, p.back].join(), p]));
    return this.passes.filter(p => !p.back).slice(0, 400).map(f => ({f, b: of.get([f.rank.rank, f.layer, f.mb, true].join())})).filter(o => o.b);
  }
  name({f, b, part}) {
    return `rank ${f.rank.rank}: forward of layer ${f.layer}, micro-batch ${f.mb}` +
      (part ? ` beside backward of layer ${b.layer}, micro-batch ${b.mb} (${percent(part)} of the time)` : ', and its backward');
  }
  show(option) {
    const {f, b, part} = option, name = p => `${p.back ? 'Backward' : 'Forward'} of layer ${p.layer}, micro-batch ${p.mb}`;
    const views = part ? [new Strands(f.rank, [f, b], name(f) + ', beside ' + name(b))] : [f, b].map(p => new Strands(p.rank, [p], name(p)));
    this.box.replaceChildren(...views.flatMap((v, k) => [part ? '' : el('h3', {}, name(k ? b : f)), v.node]), keyHelp(),
      tableBelow('Numbers', () => this.table(option, views)));
  }
  table({f, b}, views) {
    const rows = [f, b].flatMap((p, k) => p.parts.slice().sort((x, y) => x[0].start[x[1]] - y[0].start[y[1]]).map(([s, i]) =>
      [title(s, i), p.back ? 'backward' : 'forward', streamNames[s.stream], time(s.start[i] - Math.min(f.t0, b.t0)), time(s.end[i] - s.start[i]),
        (views[k] || views[0]).beside(s, i).join(', ')]));
    return table(['operator', 'strand', 'stream', 'starts', 'takes', 'beside'], rows);
  }
  // The option with this instruction of the timeline.
  find({rank, s, i}) {
    const has = p => p.rank === rank && p.layer === s.layer[i] && p.mb === s.mb[i] && p.back === (s.cls[i] !== FORWARD);
    let k = this.options.findIndex(o => has(o.f) || has(o.b));
    if (k < 0) {
      const p = this.passes.find(has), q = this.passes.find(x => x.rank === p.rank && x.layer === p.layer && x.mb === p.mb && x.back !== p.back);
      if (!q) return false;
      k = this.options.push(p.back ? {f: q, b: p} : {f: p, b: q}) - 1;
      this.choice.append(el('option', {}, this.name(this.options[k])));
    }
    this.choice.selectedIndex = k;
    this.show(this.options[k]);
    return true;
  }
}
