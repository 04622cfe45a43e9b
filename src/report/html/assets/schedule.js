// The pipeline schedule: slots of every stage over time, numbered by micro-batch (as
// figure 8 of the DHelix paper). As planned: a forward takes 1, a backward 2. As it ran:
// from the trace, the computation of each (stage, micro-batch, direction).

// Actions {row, kind, stage, mb, t0, t1}, rows being pipeline ranks.
function plannedActions(plan) {
  const actions = [];
  plan.slots.forEach((slots, row) => slots.forEach(([t0, t1, ...rest]) => {
    for (let k = 0; k < rest.length; k += 3) actions.push({row, kind: rest[k], stage: rest[k + 1], mb: rest[k + 2], t0, t1});
  }));
  return actions;
}

function ranActions({plan, trace}) {
  const split = plan && plan.slots.flat().some(slot => slot.includes('I')), last = plan ? plan.stages - 1 : 0, done = new Map();
  const stageOf = plan ? plan.layers.flatMap((n, v) => Array(n).fill(v)) : [], seen = new Set();
  for (const {stage: row = 0, streams: [s]} of trace.ranks) {
    if (seen.has(row)) continue; // the first rank of a stage stands for all
    seen.add(row);
    for (let i = 0; i < s.n; i++) {
      const {block} = s.kind[i];
      if (s.mb[i] < 0 || !['layer', 'embed', 'head'].includes(block)) continue;
      const kind = s.cls[i] === FORWARD ? 'F' : !split ? 'B' : s.cls[i] === BACKWARD ? 'I' : 'W';
      const stage = block === 'embed' ? 0 : block === 'head' ? last : stageOf[s.layer[i]] || 0, key = [row, kind, stage, s.mb[i]].join();
      if (!done.has(key)) done.set(key, {row, kind, stage, mb: s.mb[i], t0: s.start[i]});
      done.get(key).t1 = s.end[i];
    }
  }
  return [...done.values()];
}

const kinds = 'FBIW', kindNames = ['forward', 'backward', 'input gradient', 'weight gradient'];

// A row a rank, or two where forwards and backwards share their time.
function scheduleView(name, actions, say, format) {
  const rows = [];
  for (const row of [...new Set(actions.map(a => a.row))].sort((a, b) => a - b)) {
    const all = actions.filter(a => a.row === row).sort((a, b) => a.t0 - b.t0), chunks = [...new Set(all.map(a => a.stage))].sort((a, b) => a - b);
    const paired = all.some((a, k) => k && a.kind !== all[k - 1].kind && together(a, all[k - 1]) > 0.3 * Math.min(a.t1 - a.t0, all[k - 1].t1 - all[k - 1].t0));
    for (const list of paired ? [all.filter(a => a.kind === 'F'), all.filter(a => a.kind !== 'F')] : [all]) {
      const cls = a => kinds.indexOf(a.kind) * 2 + (chunks.indexOf(a.stage) > 0);
      list.forEach((a, k) => { if (k) a.t0 = Math.max(a.t0, list[k - 1].t1); });
      rows.push({label: list === all || list[0].kind === 'F' ? 'stage ' + row : '', h: paired ? 16 : 28, gap: rows.length && (list === all || list[0].kind === 'F') ? 8 : 2, centred: true, list,
        seq: new Sequence(Float64Array.from(list, a => a.t0), Float64Array.from(list, a => Math.max(a.t0, a.t1)), Uint8Array.from(list, cls), 8),
        colours: () => [palette.f, palette.b, palette.b, palette.w].flatMap(c => [c, mix(c, palette.bg, 0.5)]), text: i => list[i].mb,
        about: i => ({title: `${list[i].kind}${list[i].mb}: ${kindNames[kinds.indexOf(list[i].kind)]} of micro-batch ${list[i].mb}`,
          rows: [['pipeline rank', row], ['virtual stage', list[i].stage], ['starts', say(list[i].t0)], ['takes', say(list[i].t1 - list[i].t0)]]})});
    }
  }
  return Object.assign(new Rows(name, rows, {end: Math.max(...actions.map(a => a.t1)), left: 58, format}), {say});
}

function schedulePart(run) {
  const ways = {'As it ran': run.trace && (() => scheduleView('Pipeline schedule as it ran', ranActions(run), time, timeTick)),
    'As planned': run.plan && (() => scheduleView('Pipeline schedule as planned', plannedActions(run.plan), t => String(+t.toFixed(1)), countTick))}, box = el('div');
  const names = Object.keys(ways).filter(name => ways[name]), buttons = names.map(name => el('button', {onclick: () => show(name)}, name));
  const show = name => {
    const view = ways[name](), {say} = view;
    buttons.forEach(b => b.setAttribute('aria-pressed', b.textContent === name));
    box.replaceChildren(view.node, tableBelow('Numbers', () => table(['action', 'pipeline rank', 'virtual stage', 'starts', 'takes'],
      view.rows.flatMap(r => r.list).slice(0, 2000).map(a => [a.kind + a.mb, a.row, a.stage, say(a.t0), say(a.t1 - a.t0)]))));
  };
  show(names[0]);
  return el('div', {}, el('div', {class: 'tools'}, buttons), legend([['c-f', 'forward'], ['c-b', 'backward, or its input gradient'], ['c-w', 'weight gradient']],
    'paler: later virtual stages of a rank'), box);
}
