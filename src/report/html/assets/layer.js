// One layer, two strands: what its forward and the backward that ran with it did at the
// same moments (as figure 10 of the DHelix paper draws a pairing).

// Instructions of each (layer, micro-batch, direction) of a rank: one pass through a layer.
function layerPasses(rank) {
  const passes = new Map();
  for (const s of rank.streams) {
    s.pass = [];
    for (let i = 0; i < s.n; i++) {
      if (s.layer[i] < 0 || s.mb[i] < 0) continue;
      const back = s.cls[i] !== FORWARD, key = [rank.rank, s.layer[i], s.mb[i], back].join();
      if (!passes.has(key)) passes.set(key, {key, rank, layer: s.layer[i], mb: s.mb[i], back, parts: rank.streams.map(() => []), t0: Infinity, t1: 0});
      const p = s.pass[i] = passes.get(key);
      p.parts[s.stream].push(i);
      p.t0 = Math.min(p.t0, s.start[i]);
      p.t1 = Math.max(p.t1, s.end[i]);
    }
  }
  return [...passes.values()];
}
const passName = p => `${p.back ? 'backward' : 'forward'} of layer ${p.layer}, micro-batch ${p.mb}`;
const together = (a, b) => Math.max(0, Math.min(a.t1, b.t1) - Math.max(a.t0, b.t0));

// What ran on the rank's other streams at the same time as an instruction.
function eachBeside(rank, s, i, f) {
  for (const other of rank.streams)
    for (let k = other.from(s.start[i]); other !== s && k < other.n && other.start[k] < s.end[i]; k++) f(other, k);
}
function beside(rank, s, i) {
  const names = new Set();
  eachBeside(rank, s, i, (o, k) => names.add(`${title(o, k)} (${'FBBO'[o.cls[k]]}${o.mb[k] < 0 ? '' : o.mb[k]})`));
  return [...names].join(', ') || 'nothing';
}

// For every forward the backward whose instructions ran at the same moments most, best
// first; part: of the forward's time.
function findPairs(passes) {
  const pairs = [];
  for (const f of passes) {
    const shared = new Map();
    if (!f.back) f.parts.forEach((list, k) => list.forEach(i => eachBeside(f.rank, f.rank.streams[k], i, (o, j) => {
      const b = o.pass[j], s = f.rank.streams[k];
      if (b && b.back) shared.set(b, (shared.get(b) || 0) + Math.min(s.end[i], o.end[j]) - Math.max(s.start[i], o.start[j]));
    })));
    const [b, ns] = [...shared].reduce((x, y) => y[1] > x[1] ? y : x, [null, 0]);
    if (b) pairs.push({f, b, part: Math.min(ns / (f.t1 - f.t0 || 1), 1)});
  }
  return pairs.filter(p => p.part > 0.05).sort((x, y) => y.part - x.part);
}

// Some entries of a sequence, from t0 on.
function pick(s, indices, t0) {
  const column = list => Float64Array.from(indices, i => list[i] - t0);
  return new Sequence(column(s.start), column(s.end), Uint8Array.from(indices, i => s.cls[i]), 4);
}
function within(s, t0, t1) {
  return pick(s, Array.from({length: Math.max(s.until(t1) - s.from(t0), 0)}, (_, k) => s.from(t0) + k), t0);
}

// Passes of one rank over time, by stream, and between them what the rank was doing.
function strands(passes) {
  const {rank} = passes[0], t0 = Math.min(...passes.map(p => p.t0)), t1 = Math.max(...passes.map(p => p.t1));
  const band = {label: 'rank', h: 15, gap: 6, plain: true, seq: within(rank.states, t0, t1), colours: () => [palette.compute, palette.hidden, palette.exposed, null]};
  const rows = passes.map(p => rank.streams.filter(s => !s.stream || p.parts[s.stream].length).map(s => {
    const list = p.parts[s.stream];
    const row = streamRow(rank, s, pick(s, list, t0), i => list[i], {label: (s.stream ? '' : (p.back ? 'B' : 'F') + p.mb + ' ') + s.name, h: 24,
      gap: s.stream ? 0 : 5, ghost: within(s, t0, t1)});
    const {about} = row;
    row.about = i => ({title: about(i).title, rows: [...about(i).rows, ['beside', beside(rank, s, list[i])]]});
    return row;
  }));
  const drawn = new Rows(passes.map(passName).join(', beside '), [...rows[0], band, ...rows.slice(1).flat()], {end: t1 - t0, left: 86});
  const [{t0: from, t1: to}] = passes, room = (to - from) * 0.6; // a backward may begin early and end late
  drawn.view.show(from - t0 - room, to - t0 + room);
  return drawn;
}

class LayerView {
  constructor(run) {
    // The first rank of each stage stands for all: eight of them are enough to choose from.
    const {ranks} = run.trace, some = ranks.filter((r, k) => ranks.findIndex(q => q.stage === r.stage) === k).slice(0, 8);
    this.passes = some.flatMap(layerPasses);
    this.pairs = findPairs(this.passes).slice(0, 400);
    const own = new Map(this.passes.filter(p => p.back).map(p => [p.key, p]));
    // Without co-execution: a forward and its own backward.
    this.options = this.pairs.length ? this.pairs
      : this.passes.filter(p => !p.back).slice(0, 400).map(f => ({f, b: own.get(f.key.replace('false', 'true'))})).filter(o => o.b);
    this.choice = el('select', {onchange: () => this.show(this.options[this.choice.selectedIndex])}, this.options.map(o => this.option(o)));
    this.box = el('div');
    this.node = el('div', {}, this.options.length ? [el('div', {class: 'tools'}, el('label', {}, 'Layer', this.choice)),
      legend([['c-f', 'forward'], ['c-b', 'input gradient'], ['c-w', 'weight gradient'], ['c-local', 'communication inside a node'], ['c-cross', 'between nodes'],
        ['p-compute', 'rank computes'], ['p-beside', 'communication beside it'], ['p-exposed', 'communication exposed']]), this.box] : absent('The trace has no instruction of a layer.'));
    if (this.options.length) this.show(this.options[0]);
  }
  option({f, b, part}) {
    return el('option', {}, `rank ${f.rank.rank}: ${passName(f)}` + (part ? ` beside ${passName(b)} (${percent(part)} of it at the same moments)` : ', and its backward'));
  }
  show({f, b, part}) {
    const views = part ? [strands([f, b])] : [strands([f]), strands([b])];
    this.box.replaceChildren(...views.flatMap((v, k) => part ? [v.node] : [el('h3', {}, passName(k ? b : f)), v.node]), tableBelow('Numbers', () =>
      table(['operator', 'strand', 'stream', 'starts', 'takes', 'beside'], views.flatMap(v => v.rows.filter(r => !r.plain).flatMap(({seq, stream: s, of, rank}) =>
        Array.from(seq.start, (start, i) => [title(s, of(i)), s.cls[of(i)] ? 'backward' : 'forward', s.name, time(start), time(seq.end[i] - start), beside(rank, s, of(i))]))))));
  }
  // The option with an instruction of the timeline.
  find({rank, stream: s, of}, i) {
    const key = [rank.rank, s.layer[of(i)], s.mb[of(i)], s.cls[of(i)] !== FORWARD].join(), has = p => p.key === key;
    if (!this.passes.some(p => p.rank === rank)) this.passes.push(...layerPasses(rank));
    let k = this.options.findIndex(o => has(o.f) || has(o.b));
    if (k < 0) {
      const p = this.passes.find(has), q = p && this.passes.find(x => x.back !== p.back && x.key === p.key.replace(p.back, x.back));
      if (!q) return;
      k = this.options.push(p.back ? {f: q, b: p} : {f: p, b: q}) - 1;
      this.choice.append(this.option(this.options[k]));
    }
    this.choice.selectedIndex = k;
    this.show(this.options[k]);
    document.getElementById('layer').scrollIntoView();
  }
}
