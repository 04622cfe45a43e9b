// Where the time went, operators, and the matrix of overlap effectiveness.

const parts = {compute: 'computation', beside: 'computation beside communication', exposed: 'communication exposed',
  dependency: 'exposed: the next operator waits for it', contention: 'exposed: holds up a transfer that is waited for',
  tail: 'exposed: nothing is left to compute', late: 'exposed: computation could run, but began late',
  slowdown: 'exposed: computation beside it was slowed down', bubble: 'waits for other stages: the bubble',
  partners: 'waits for ranks that are late', idle: 'nothing ran'};

// Bars of {name, end, ms: {part: milliseconds}}, all to one scale.
function splitBars(rows) {
  const used = Object.keys(parts).filter(key => rows.some(r => r.ms[key] > 0)), most = Math.max(...rows.map(r => sum(Object.values(r.ms))));
  const bar = r => used.map(key => el('i', {class: 'p-' + key, title: `${parts[key]}: ${time(r.ms[key] * 1e6)}`, style: `width:${100 * r.ms[key] / most}%`}));
  return [legend(used.map(key => ['p-' + key, parts[key]])), el('div', {class: 'split'}, rows.map(r => [el('span', {}, r.name), el('div', {class: 'track'}, bar(r)), el('b', {}, r.end)])),
    tableBelow('Numbers', () => table(['milliseconds', ...rows.map(r => r.name)], used.map(key => [parts[key], ...rows.map(r => digits(r.ms[key], 4))])))];
}

// The mean step of rank 0, or of all simulated ranks, from the summary.
function whereTimeWent(runs) {
  const rows = runs.filter(r => r.summary && r.summary.times).map(({label, summary: {times: t, steps, hidden_share}}) => {
    const waits = {bubble: t.bubble_ms || 0, partners: t.partners_ms || 0};
    const ms = {compute: t.compute_ms, ...t.exposed_by_ms, ...waits, idle: t.idle_ms - waits.bubble - waits.partners};
    for (const key in ms) ms[key] /= Math.max(steps - 1, 1);
    return {name: label, ms, end: percent(hidden_share) + ' hidden'};
  });
  return rows.length ? splitBars(rows) : absent('Only runs on several ranks communicate; their ', code('summary.json'), ' says how the mean step divides.');
}

// The traced step of each rank.
function byRank({ranks, end}) {
  return splitBars(ranks.map(r => {
    const [compute, beside, exposed, idle] = [COMPUTE, BESIDE, EXPOSED, IDLE].map(k => r.states.spent(k, 0, end) / 1e6);
    return {name: 'rank ' + r.rank, ms: {compute, beside, exposed, idle}, end: percent(beside / (beside + exposed || 1)) + ' overlapped'};
  }));
}

// Operators of the traced step by the time they took.
function operators({ranks}) {
  const all = new Map();
  for (const r of ranks) for (const s of r.streams) for (let i = 0; i < s.n; i++) {
    const k = s.kind[i], key = k.name + s.stream, o = all.get(key) || {name: k.name, stream: s.stream, on: s.name, calls: 0, ns: 0, flops: 0, bytes: 0, transfer: 0, beside: 0};
    all.set(key, o);
    o.calls++;
    o.ns += s.end[i] - s.start[i];
    o.flops += k.flops || 0;
    o.bytes += k.bytes || 0;
    o.transfer += s.end[i] - s.met[i];
    if (s.stream) o.beside += r.states.spent(BESIDE, s.met[i], s.end[i]);
  }
  const per = (x, o) => x ? rate(x / o.ns * 1e9, '') : '–';
  return table(['operator', 'stream', 'calls', 'time', 'mean', 'FLOP/s', 'B/s', 'overlapped'], [...all.values()].sort((a, b) => b.ns - a.ns).map(o =>
    [o.name, o.on, o.calls, time(o.ns), time(o.ns / o.calls), per(o.flops, o), per(o.bytes, o), o.stream ? percent(o.beside / (o.transfer || 1)) : '–']));
}

// Blue: hidden; orange: slower than one after the other; pale: no gain.
function heatMap({rows, columns, at}) {
  const cell = v => {
    const td = el('td', {title: v}, v == null ? '' : v.toFixed(2));
    if (v != null) repaint(() => {
      td.style.background = mix(v < 0 ? palette.b : palette.f, palette.bg, clamp(Math.abs(v), 0, 1));
      td.style.color = Math.abs(v) > 0.55 ? inkOn(v < 0 ? palette.b : palette.f) : palette.fg;
    });
    return td;
  };
  return el('div', {class: 'scroll heat', tabindex: 0, role: 'group', 'aria-label': 'overlap effectiveness'}, el('table', {},
    el('thead', {}, el('tr', {}, el('th'), columns.map(name => el('th', {scope: 'col'}, name)))),
    el('tbody', {}, rows.map((name, i) => el('tr', {}, el('th', {scope: 'row'}, name), columns.map((_, k) => cell(at[i * columns.length + k])))))));
}

// Figures of a table of simulated steps: [name, key, how a value reads, whether less is better].
const figures = [['step', 'step_ms', v => time(v * 1e6), true], ['tokens a second', 'tokens_per_s', v => digits(v, 5), false], ['model TFLOP/s of a device', 'model_tflops_per_device', v => digits(v, 4), false],
  ['share of peak', 'mfu', percent, false], ['communication hidden', 'hidden_share', percent, false], ['exposed', 'exposed_ms', v => time(v * 1e6), true], ['bubble', 'bubble_ms', v => time(v * 1e6), true],
  ['memory', 'peak_bytes', bytes, true]];

// Strong: the best; pale: the worst; empty: refused, the reason as its title.
function stepMatrix({settings, cells}, [, key, say, less]) {
  const [rows, columns] = settings, inner = columns ? columns.values : [''], known = cells.map(c => c[key]).filter(v => v != null), low = Math.min(...known), high = Math.max(...known);
  const cell = c => {
    const v = c[key], td = el('td', {title: c.reason || (c.fits ? null : 'needs more memory than a device has')}, v == null ? '–' : say(v) + (c.fits ? '' : ' *'));
    if (v != null) repaint(() => {
      const part = high > low ? (less ? high - v : v - low) / (high - low) : 1;
      td.style.background = mix(palette.f, palette.bg, 0.75 * part);
      td.style.color = part > 0.7 ? inkOn(palette.f) : palette.fg;
    });
    return td;
  };
  return el('div', {class: 'scroll steps', tabindex: 0, role: 'group', 'aria-label': 'simulated steps'}, el('table', {},
    el('thead', {}, el('tr', {}, el('th', {}, columns ? `${rows.key} ↓ ${columns.key} →` : rows.key), inner.map(name => el('th', {scope: 'col'}, name)))),
    el('tbody', {}, rows.values.map((name, i) => el('tr', {}, el('th', {scope: 'row'}, name), inner.map((_, k) => cell(cells[i * inner.length + k])))))));
}

function tablePart(t) {
  const box = el('div'), there = figures.filter(f => t.cells.some(c => c[f[1]] != null)), show = () => box.replaceChildren(stepMatrix(t, there[choice.selectedIndex]));
  const choice = el('select', {onchange: show}, there.map(f => el('option', {}, f[0])));
  show();
  return [el('div', {class: 'tools'}, el('label', {}, 'Figure', choice)), box, tableBelow('Numbers and reasons', () => table([...t.settings.map(s => s.key), ...there.map(f => f[0]), ''],
    t.cells.map(c => [...c.values, ...there.map(f => c[f[1]] == null ? '–' : f[2](c[f[1]])), c.reason || (c.fits ? '' : 'does not fit')])))];
}
