// The pipeline schedule: slots of every stage over time, numbered by micro-batch (as
// figure 8 of the DHelix paper). As planned: a forward takes 1, a backward 2. As it ran:
// from the trace, the computation of each (stage, micro-batch, direction).

// Actions [{row, kind, stage, mb, t0, t1}], rows being pipeline ranks.
function plannedActions(plan) {
  const actions = [];
  plan.slots.forEach((slots, row) => slots.forEach(([t0, t1, ...rest]) => {
    for (let k = 0; k < rest.length; k += 3)
      actions.push({row, kind: rest[k], stage: rest[k + 1], mb: rest[k + 2], t0, t1, half: rest.length > 3});
  }));
  return actions;
}

function ranActions(run) {
  const {plan, trace} = run, split = plan && plan.slots.flat().some(slot => slot.includes('I'));
  const stageOf = stagesOfLayers(plan), last = plan ? plan.stages - 1 : 0, actions = [], seen = new Set();
  for (const rank of trace.ranks) {
    const row = rank.stage || 0, s = rank.streams[0], found = new Map();
    if (seen.has(row)) continue; // the first rank of a stage stands for all
    seen.add(row);
    for (let i = 0; i < s.n; i++) {
      const {block} = s.kind[i];
      if (s.mb[i] < 0 || !['layer', 'embed', 'head'].includes(block)) continue;
      const kind = s.cls[i] === FORWARD ? 'F' : !split ? 'B' : s.cls[i] === BACKWARD ? 'I' : 'W';
      const stage = block === 'embed' ? 0 : block === 'head' ? last : stageOf(s.layer[i]), key = [kind, stage, s.mb[i]].join();
      const a = found.get(key);
      if (a) a.t1 = s.end[i];
      else found.set(key, {row, kind, stage, mb: s.mb[i], t0: s.start[i], t1: s.end[i]});
    }
    actions.push(...found.values());
  }
  return markHalves(actions);
}
function stagesOfLayers(plan) {
  const stages = plan ? plan.layers.flatMap((n, v) => Array(n).fill(v)) : [];
  return layer => stages[layer] || 0;
}
// What shares its time with another action of its rank is drawn half as high.
function markHalves(actions) {
  const byRow = new Map();
  for (const a of actions) byRow.set(a.row, [...byRow.get(a.row) || [], a]);
  for (const list of byRow.values()) {
    list.sort((a, b) => a.t0 - b.t0);
    list.forEach((a, k) => {
      for (let j = k + 1; j < list.length && list[j].t0 < a.t1; j++)
        if (together(a, list[j]) > 0.2 * Math.min(a.t1 - a.t0, list[j].t1 - list[j].t0)) a.half = list[j].half = true;
    });
  }
  return actions;
}

const kindNames = {F: 'forward', B: 'backward', I: 'input gradient', W: 'weight gradient'};

class Schedule {
  constructor(actions, plan, format, name) {
    this.rows = [];
    for (const a of actions) (this.rows[a.row] = this.rows[a.row] || []).push(a);
    this.rows = Array.from(this.rows, list => (list || []).sort((a, b) => a.t0 - b.t0));
    this.chunks = new Map(); // virtual stage -> how manieth of its rank
    this.rows.forEach(list => [...new Set(list.map(a => a.stage))].sort((a, b) => a - b).forEach((v, k) => this.chunks.set(v, k)));
    this.format = format;
    this.end = Math.max(...actions.map(a => a.t1));
    this.view = new TimeView(this, {name, end: this.end, left: innerWidth < 600 ? 34 : 64, format, keys: false});
    this.node = this.view.node;
  }
  height() { return RULER + 8 + this.rows.length * 36; }
  y(a) { return RULER + 8 + a.row * 36 + (a.half && a.kind !== 'F' ? 15 : 0); }
  h(a) { return a.half ? 14 : 29; }
  hit(x, y) {
    const t = this.view.time(x), list = this.rows[Math.floor((y - RULER - 6) / 36)] || [];
    return x < this.view.left ? null : list.find(a => a.t0 <= t && a.t1 >= t && y >= this.y(a) - 1 && y <= this.y(a) + this.h(a) + 1) || null;
  }
  about(a) {
    return {title: `${a.kind}${a.mb}: ${kindNames[a.kind]} of micro-batch ${a.mb}`,
      rows: [['pipeline rank', a.row], ['virtual stage', a.stage], ['starts', this.format(a.t0)], ['takes', this.format(a.t1 - a.t0)]]};
  }
  move(a, dx, dy) {
    if (!a) return this.rows.flat()[0];
    const list = this.rows[a.row];
    if (dx) return list[clamp(list.indexOf(a) + dx, 0, list.length - 1)];
    const other = this.rows[a.row + dy];
    return other && (other.find(b => b.t1 > a.t0) || other[other.length - 1]);
  }
  draw(g) {
    const {ctx, c} = g, colours = {F: c.f, B: c.b, I: c.b, W: c.w};
    ctx.save();
    ctx.translate(0, -g.top);
    this.rows.forEach((list, row) => {
      const y = RULER + 8 + row * 36;
      ctx.fillStyle = c.panel;
      ctx.fillRect(g.left, y, g.w - g.left, 29);
      ctx.fillStyle = c.fg;
      ctx.textAlign = 'left';
      ctx.fillText(g.left < 60 ? 'p' + row : 'stage ' + row, 6, y + 15);
      for (const a of list) {
        if (a.t1 < g.t0 || a.t0 > g.t1) continue;
        const [x, w] = barOf(g, a.t0, a.t1), ya = this.y(a), ha = this.h(a), later = this.chunks.get(a.stage) > 0;
        ctx.fillStyle = colours[a.kind];
        ctx.globalAlpha = later ? 0.62 : 1;
        ctx.fillRect(x, ya, Math.max(w - 1, 0.7), ha);
        ctx.globalAlpha = 1;
        if (w < 9) continue;
        ctx.textAlign = 'center';
        ctx.fillStyle = later ? c.fg : inkOn(colours[a.kind]);
        if (ctx.measureText(a.mb).width < w - 3) ctx.fillText(a.mb, x + w / 2, ya + ha / 2 + 0.5);
      }
    });
    for (const a of [g.hover, g.item]) if (a) outline(g, ...(([x, w]) => [x, this.y(a), w - 1, this.h(a)])(barOf(g, a.t0, a.t1)), a === g.item);
    ctx.restore();
  }
}

class ScheduleView {
  constructor(run) {
    const units = t => trim(t.toFixed(1));
    const made = {};
    const ways = [run.trace && ['As it ran', () => new Schedule(ranActions(run), run.plan, time, 'Pipeline schedule as it ran')],
      run.plan && ['As planned', () => new Schedule(plannedActions(run.plan), run.plan, units, 'Pipeline schedule as planned')]].filter(Boolean);
    this.box = el('div', {});
    const buttons = ways.map(([name, make]) => el('button', {'aria-pressed': 'false', onclick: () => show(name, make)}, name));
    const show = (name, make) => {
      made[name] = made[name] || make();
      buttons.forEach(b => b.setAttribute('aria-pressed', b.textContent === name));
      this.box.replaceChildren(made[name].node, keyHelp(), tableBelow('Numbers', () => table(['action', 'pipeline rank', 'virtual stage', 'starts', 'takes'],
        made[name].rows.flat().slice(0, 2000).map(a => [a.kind + a.mb, a.row, a.stage, made[name].format(a.t0), made[name].format(a.t1 - a.t0)]))));
    };
    this.node = el('div', {}, el('div', {class: 'tools'}, buttons), legend([['c-f', 'forward'], ['c-b', 'backward, or its input gradient'],
      ['c-w', 'weight gradient'], ['p-none', 'paler: later virtual stages of the rank; half height: two strands at once']]), this.box);
    show(...ways[0]);
  }
}
