// Where the time went, operators, and the matrix of overlap effectiveness.

const causes = [['dependency', 'exposed: the next operator waits for it'], ['contention', 'exposed: it is in the way of one that is waited for'],
  ['tail', 'exposed: nothing is left to compute'], ['other', 'exposed: the core was late']];

// [class, label, ms] of a run's mean step, from its summary.
function stepParts({times}) {
  return [['compute', 'computation alone', times.compute_ms - times.hidden_ms], ['hidden', 'communication hidden behind computation', times.hidden_ms],
    ...causes.map(([key, text]) => [key, text, times.exposed_by_ms[key] || 0]), ['idle', 'nothing ran', times.idle_ms]];
}
function splitBars(rows) { // [{name, parts, end}]
  const most = Math.max(...rows.map(r => sum(r.parts.map(p => p[2]))));
  return el('div', {class: 'split'}, rows.map(r => [el('span', {}, r.name), el('div', {class: 'track', role: 'img',
    'aria-label': r.parts.map(([, text, ms]) => `${text} ${time(ms * 1e6)}`).join(', ')}, r.parts.map(([cls, text, ms]) => {
    const i = el('i', {class: 'p-' + cls, title: `${text}: ${time(ms * 1e6)}`});
    i.style.width = 100 * ms / most + '%';
    return i;
  })), el('span', {class: 'end'}, r.end)]));
}

function whereTimeWent(runs) {
  const timed = runs.filter(r => r.summary && r.summary.times);
  const perStep = r => Math.max((r.summary.steps || 2) - 1, 1);
  const rows = timed.map(r => ({name: r.label, parts: stepParts(r.summary).map(([c, t, ms]) => [c, t, ms / perStep(r)]), end: percent(r.summary.hidden_share) + ' hidden'}));
  const legendParts = rows.length && rows[0].parts.filter((p, k) => rows.some(r => r.parts[k][2] > 0));
  return el('div', {}, !rows.length ? absent('Only runs on several ranks communicate; their ', code('summary.json'), ' says how the mean step divides.') : [
    legend(legendParts.map(([cls, text]) => ['p-' + cls, text])), splitBars(rows),
    tableBelow('Numbers', () => table(['milliseconds a step', ...rows.map(r => r.name)], [...rows[0].parts.map(([, text], k) => [text, ...rows.map(r => digits(r.parts[k][2], 4))]),
      ['sum', ...rows.map(r => digits(sum(r.parts.map(p => p[2])), 4))]]))]);
}

// The traced step of each rank.
function byRank(run) {
  const classes = ['compute', 'hidden', 'exposed', 'idle'];
  return splitBars(run.trace.ranks.map(r => ({name: 'rank ' + r.rank, parts: classes.map((cls, k) => [cls, stateNames[k], r.states.spent(k, 0, run.trace.end) / 1e6]),
    end: percent(r.states.spent(HIDDEN, 0, run.trace.end) / ((r.states.spent(HIDDEN, 0, run.trace.end) + r.states.spent(EXPOSED, 0, run.trace.end)) || 1)) + ' hidden'})));
}

// Operators of the traced step by the time they took.
function operators(run) {
  const all = new Map();
  for (const r of run.trace.ranks) for (const s of r.streams) for (let i = 0; i < s.n; i++) {
    const k = s.kind[i], key = k.name + s.stream, ns = s.end[i] - s.start[i];
    if (!all.has(key)) all.set(key, {name: k.name, stream: s.stream, calls: 0, ns: 0, flops: 0, bytes: 0, hidden: 0});
    const o = all.get(key);
    o.calls++;
    o.ns += ns;
    o.flops += k.flops || 0;
    o.bytes += k.bytes || 0;
    if (s.stream) o.hidden += r.states.spent(HIDDEN, s.start[i], s.end[i]);
  }
  return table(['operator', 'stream', 'calls', 'time', 'mean', 'FLOP/s', 'B/s', 'hidden'], [...all.values()].sort((a, b) => b.ns - a.ns).map(o =>
    [o.name, streamNames[o.stream], o.calls, time(o.ns), time(o.ns / o.calls), o.flops ? rate(o.flops / o.ns * 1e9, '') : '–', o.bytes ? rate(o.bytes / o.ns * 1e9, '') : '–', o.stream ? percent(o.hidden / o.ns) : '–']));
}

// Blue: hidden; orange: slower than one after the other; nothing: no gain.
function heatMap(oef) {
  const cell = v => {
    const td = el('td', {title: String(v)}, v.toFixed(2));
    const paint = () => {
      td.style.background = `color-mix(in srgb, ${v < 0 ? palette.b : palette.f} ${Math.round(100 * clamp(Math.abs(v), 0, 1))}%, ${palette.bg})`;
      td.style.color = Math.abs(v) > 0.55 ? inkOn(v < 0 ? palette.b : palette.f) : palette.fg;
    };
    paint();
    themeChanged.push(paint);
    return td;
  };
  return el('div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'overlap effectiveness'}, el('table', {class: 'heat'},
    el('thead', {}, el('tr', {}, el('th', {}, ''), oef.columns.map(name => el('th', {scope: 'col'}, name)))),
    el('tbody', {}, oef.rows.map((name, i) => el('tr', {}, el('th', {scope: 'row'}, name), oef.columns.map((_, k) => cell(oef.at[i * oef.columns.length + k])))))));
}
