// The page's data as typed arrays with indexes by time.

const FORWARD = 0, BACKWARD = 1, WEIGHTS = 2, OTHER = 3;
const phaseNames = ['forward', 'backward, input gradient', 'backward, weight gradient', 'optimizer'];

function accumulate(deltas) {
  const out = new Float64Array(deltas.length);
  for (let i = 0, t = 0; i < out.length; i++) out[i] = t += deltas[i];
  return out;
}

// What runs one behind the other: start and end by number, and what kind each is. Time in
// any window by class comes from running sums, so drawing costs pixels, not entries.
class Sequence {
  constructor(start, end, cls, nClasses) {
    Object.assign(this, {n: start.length, start, end, cls});
    this.sums = Array.from({length: nClasses}, () => new Float64Array(this.n + 1));
    for (let i = 0; i < this.n; i++) {
      for (const s of this.sums) s[i + 1] = s[i];
      this.sums[cls[i]][i + 1] += end[i] - start[i];
    }
  }
  from(t) { return lowerBound(this.end, t, true); } // first that ends after t
  until(t, i = 0) { // how many start before t, where i do; near i it is found at once
    let step = 1;
    while (i + step < this.n && this.start[i + step] < t) step *= 2;
    return lowerBound(this.start, t, false, i, Math.min(i + step, this.n));
  }
  // The one that runs at t, or the nearest within slack; -1.
  at(t, slack) {
    const i = this.from(t);
    const away = k => k < 0 || k >= this.n ? Infinity : Math.max(this.start[k] - t, t - this.end[k], 0);
    const k = away(i) <= away(i - 1) ? i : i - 1;
    return away(k) <= slack ? k : -1;
  }
  // Time of a class inside [t0, t1], where entries i to k are.
  part(cls, i, k, t0, t1) {
    return this.sums[cls][k] - this.sums[cls][i] - (this.cls[i] === cls ? Math.max(t0 - this.start[i], 0) : 0)
      - (this.cls[k - 1] === cls ? Math.max(this.end[k - 1] - t1, 0) : 0);
  }
  spent(cls, t0, t1) {
    const i = this.from(t0), k = this.until(t1);
    return k > i ? this.part(cls, i, k, t0, t1) : 0;
  }
  // The class that took most of [t0, t1], of those that have a colour; and what they took.
  main(i, k, t0, t1, colours) {
    let best = -1, most = 0, all = 0;
    for (let cls = 0; cls < this.sums.length; cls++) {
      const spent = colours[cls] && k > i ? this.part(cls, i, k, t0, t1) : 0;
      all += spent;
      if (spent > most) [best, most] = [cls, spent];
    }
    return [best, all];
  }
}

const COMPUTE = 0, BESIDE = 1, EXPOSED = 2, IDLE = 3;

// What a rank did at every moment: computed alone, computed while it communicated, ...
// A stream's edges come sorted: start, end, start, ... An odd number passed: it runs.
// A communication does once its partners have come.
function statesOf(streams, begin, end) {
  const start = [], stop = [], cls = [], passed = streams.map(() => 0);
  const edge = k => {
    const s = streams[k], j = passed[k];
    return j >= 2 * s.n ? Infinity : (j & 1 ? s.end : s.met)[j >> 1];
  };
  const add = (t0, t1) => {
    let links = 0;
    for (let k = 1; k < passed.length; k++) links |= passed[k] & 1;
    const state = passed[0] & 1 ? (links ? BESIDE : COMPUTE) : links ? EXPOSED : IDLE;
    if (t1 <= t0) return;
    if (cls[cls.length - 1] === state) stop[stop.length - 1] = t1;
    else { start.push(t0); stop.push(t1); cls.push(state); }
  };
  for (let t = begin; ;) {
    const edges = streams.map((_, k) => edge(k)), at = Math.min(...edges, end);
    add(t, at);
    if (at === Infinity || edges.every(e => e === Infinity)) break;
    passed[edges.indexOf(Math.min(...edges))]++;
    t = at;
  }
  return new Sequence(Float64Array.from(start), Float64Array.from(stop), Uint8Array.from(cls), 4);
}

// Rows of "kinds" as the generator writes them.
function readKind([name, cat, block, out, group, peer, flops, bytes]) {
  const phase = ['forward', 'input-gradient', 'weight-gradient'].indexOf(cat);
  return {name, phase: phase < 0 ? OTHER : phase, block, out, group, peer, flops, bytes};
}

function readStream(raw, kinds, stream, [name, engine], rank) {
  const start = accumulate(raw.start), end = start.map((t, i) => t + raw.dur[i]);
  const s = new Sequence(start, end, Uint8Array.from(raw.kind, k => kinds[k].phase), 4);
  const met = start.map((t, i) => t + raw.waited[i]);
  return Object.assign(s, {stream, name, engine, rank, met, kind: raw.kind.map(k => kinds[k]), mb: Int32Array.from(raw.mb), layer: Int32Array.from(raw.layer)});
}

// A column that is a number is that of the rank with this number.
function unshare(ranks) {
  const own = (columns, of) => { for (const key in columns) if (typeof columns[key] === 'number') columns[key] = of(ranks[columns[key]])[key]; };
  for (const r of ranks) {
    r.streams.forEach((s, k) => own(s, other => other.streams[k]));
    if (r.memory) own(r.memory, other => other.memory);
  }
}

function readTrace(raw) {
  unshare(raw.ranks);
  const kinds = raw.kinds.map(readKind);
  const ranks = raw.ranks.map(r => ({
    ...r, streams: r.streams.map((s, k) => readStream(s, kinds, k, raw.streams[k], r.rank)),
    memory: r.memory && {...r.memory, t: accumulate(r.memory.t)},
  }));
  const end = Math.max(...ranks.flatMap(r => r.streams.map(s => s.n ? s.end[s.n - 1] : 0)));
  for (const r of ranks) r.states = statesOf(r.streams, 0, end);
  return {...raw, ranks, end};
}

// Runs' names, shortened where that leaves them different.
function labels(names) {
  const short = names.map(name => name.split('/').filter(Boolean).pop() || name);
  return new Set(short).size === names.length ? short : names;
}

function readData() {
  const data = JSON.parse(document.getElementById('data').textContent);
  const short = labels(data.runs.map(r => r.name));
  data.runs.forEach((r, i) => {
    r.label = short[i];
    r.index = i;
    if (r.trace) r.trace = readTrace(unpack(r.trace));
  });
  return data;
}

// "linear -> qkv", micro-batch and layer: an instruction in words.
function title(s, i) {
  const k = s.kind[i];
  return k.name + (k.out ? ' → ' + k.out : '');
}
function place(s, i) {
  return [s.layer[i] >= 0 ? 'layer ' + s.layer[i] : s.kind[i].block, s.mb[i] >= 0 && 'micro-batch ' + s.mb[i]].filter(Boolean).join(', ');
}
function facts(rank, s, i) {
  const k = s.kind[i], ns = s.end[i] - s.start[i];
  const rows = [['what', phaseNames[k.phase]], ['of', place(s, i)], ['rank', `${s.rank}, ${s.name}`],
    ['starts', time(s.start[i])], ['takes', time(ns)]];
  if (s.met[i] > s.start[i]) rows.push(['waits for partners', time(s.met[i] - s.start[i])]);
  if (k.group) rows.push(['group', k.group + (k.peer != null ? `, stage ${k.peer}` : '')]);
  if (k.flops && ns) rows.push(['speed', rate(k.flops / ns * 1e9, 'FLOP/s')]);
  if (k.bytes && ns) rows.push([s.stream ? 'operands' : 'touches', `${bytes(k.bytes)}, ${rate(k.bytes / ns * 1e9, 'B/s')}`]);
  if (s.stream) rows.push(['overlapped', percent(rank.states.spent(BESIDE, s.met[i], s.end[i]) / (s.end[i] - s.met[i] || 1))]);
  return rows;
}
