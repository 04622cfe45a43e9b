// The page from the data.

function section(id, name, intro, ...content) {
  return el('section', {id, 'aria-labelledby': id + '-h'}, el('h2', {id: id + '-h'}, name), intro && el('p', {}, intro), content);
}
const median = list => list.length ? [...list].sort((a, b) => a - b)[list.length >> 1] : null;

function tiles(run) {
  const s = run.summary || {}, m = run.metrics || {}, speed = s.tokens_per_s, rows = [];
  const add = (name, value, note) => rows.push(el('div', {}, el('dt', {}, name), el('dd', {}, value, note && el('small', {}, note))));
  if (speed) add('Speed', digits(speed) + ' tok/s', s.simulated ? 'simulated' : 'median over steps');
  if (speed && run.sizes) add('Step', time(run.sizes.tokens / speed * 1e9), `${run.sizes.tokens.toLocaleString('en')} tokens`);
  if (s.hidden_share != null) add('Hidden', percent(s.hidden_share), 'of the time communication ran');
  if (s.loss != null) add('Loss', s.loss.toFixed(4), s.val_loss != null && `validation ${s.val_loss.toFixed(4)}`);
  if (s.slab_planned_bytes) add('Memory', bytes(s.slab_planned_bytes), s.slab_peak_bytes === s.slab_planned_bytes ? 'planned, and used, on rank 0' : `planned on rank 0; ${bytes(s.slab_peak_bytes)} used`);
  if (m.model_flops) add('Model FLOP/s', rate(median(m.model_flops), 'FLOP/s'));
  return rows.length > 0 && el('dl', {class: 'tiles'}, rows);
}
function factList(run) {
  return run.facts && el('dl', {class: 'facts'}, run.facts.map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));
}

const howToTrace = run => ['No trace in the run folder. Train with ', code('--set trace.step=N'), ' to write step N of every rank: ',
  code(`dhelix train JOB --set trace.step=5`), ', then ', code(`dhelix report ${run.name}`), '.'];

function timelinePart(run) {
  if (!run.trace) return {node: absent(...howToTrace(run))};
  const view = new Timeline(run), t = run.trace;
  const notes = [`Step ${run.sizes ? run.sizes.traced : ''}: ${t.n.toLocaleString('en')} instructions of ${t.ranks.length} ranks in ${time(t.end)}.`,
    t.files > t.ranks.length && ` Of ${t.files} ranks; --ranks shows more.`, !t.one_clock && ' The ranks have no common clock: each begins at 0.'].filter(Boolean).join('');
  return {view, node: el('div', {}, el('p', {class: 'said'}, notes), view.node, tableBelow('Operators of the step', () => operators(run)),
    tableBelow('Hidden and exposed, by rank', () => byRank(run)))};
}

// Everything that belongs to one run.
function runSections(run) {
  const timeline = timelinePart(run), layer = run.trace && new LayerView(run);
  const memory = run.trace && run.trace.ranks.some(r => r.memory && r.bytes) && new Memory(run);
  if (memory) {
    timeline.view.view.partners.push(memory.view);
    memory.view.partners.push(timeline.view.view);
  }
  if (timeline.view) timeline.view.onlayer = item => layer.find(item) && document.getElementById('layer').scrollIntoView();
  return [
    section('timeline', 'Timeline', 'Every instruction of every rank, by stream. A stream runs its instructions in order; what overlaps across streams ran at once.', timeline.node),
    section('layer', 'One layer, two strands', layer && layer.pairs.length ? 'A layer’s forward beside the backward of another micro-batch that ran with it. The band between them is the rank: dark where communication was hidden, red where it was not.'
      : layer && 'No forward ran beside a backward: this run has one strand. A strategy of two strands (--set strategy=list) runs them together. Here a forward and its own backward.', layer ? layer.node : absent(...howToTrace(run))),
    section('schedule', 'Pipeline schedule', 'Slots of every pipeline stage over time; numbers are micro-batches.' + (run.plan ? ` ${run.plan.name}, ${run.plan.stages} virtual stages.` : ''),
      run.trace || run.plan ? new ScheduleView(run).node : absent('No job.yaml and no trace in the run folder. ', run.plan_error || '')),
    section('memory', 'Memory over the step', 'Bytes of a rank’s slab that are in use: what stays at the bottom, activations and scratch above it, as they lived in the traced step. Moves with the timeline.',
      memory ? memory.node : absent(...(run.trace ? ['The trace has no memory counters; a new one has: ', code('--set trace.step=N'), '.'] : howToTrace(run)))),
    section('oef', 'Overlap effectiveness', 'How much of the shorter of two operators disappears when they run together: 1 all of it, 0 nothing, below 0 both lose. Rows: forward; columns: backward.',
      run.oef ? heatMap(run.oef) : absent('No profile in the run folder: an ', code('oef.csv'), ' with forward operators as rows and backward operators as columns is drawn here.')),
  ];
}

function build() {
  const toggle = themeButton(), data = readData(), manyRuns = data.runs.length > 1;
  document.title = data.runs.map(r => r.label).join(', ') + ' · dhelix report';
  const many = data.runs, box = el('div', {}), choice = el('select', {onchange: () => show(many[choice.selectedIndex])}, many.map(r => el('option', {}, r.label)));
  const head = el('div', {}), made = new Map();
  const show = run => {
    head.replaceChildren(...[tiles(run), factList(run)].filter(Boolean));
    if (!made.has(run)) made.set(run, runSections(run));
    box.replaceChildren(...made.get(run));
  };
  document.getElementById('top').append(el('div', {class: 'bar'}, el('div', {}, el('p', {class: 'kicker'}, 'dhelix report'),
    el('h1', {}, manyRuns ? `${many.length} runs` : many[0].name)), toggle));
  const links = [['time', 'Time'], ['training', 'Training'], ['timeline', 'Timeline'], ['layer', 'Layer'], ['schedule', 'Schedule'], ['memory', 'Memory'], ['oef', 'Overlap']];
  document.getElementById('page').append(...[
    el('nav', {'aria-label': 'Sections'}, links.map(([id, name]) => el('a', {href: '#' + id}, name))),
    manyRuns ? compare(many) : head,
    section('time', 'Where the time of a step went', 'Mean over the steps but the first, on rank 0; the whole bar is the step.', whereTimeWent(many)),
    section('training', 'Training', null, runLegend(many), many.some(r => r.metrics) ? trainingCharts(many) : absent('No ', code('metrics.jsonl'), ' in the run folder: training writes a line a step.')),
    manyRuns && section('run', 'One run', null, el('div', {class: 'tools'}, el('label', {}, 'Run', choice)), head),
    box, el('footer', {}, `Written by dhelix ${data.version} from ${many.map(r => r.name).join(', ')}. This file is complete: it loads nothing.`)].filter(Boolean));
  show(many[0]);
}

// What differs between the runs, and what came out.
function compare(runs) {
  const labelsOf = [...new Set(runs.flatMap(r => (r.facts || []).map(f => f[0])))];
  const fact = (r, label) => ((r.facts || []).find(f => f[0] === label) || [])[1] || '–';
  const differing = labelsOf.filter(l => new Set(runs.map(r => fact(r, l))).size > 1);
  const number = (r, key, format) => r.summary && r.summary[key] != null ? format(r.summary[key]) : '–';
  return section('compare', 'Side by side', null, table(['', ...runs.map(r => r.label)], [
    ...differing.map(l => [l, ...runs.map(r => fact(r, l))]),
    ['tokens per second', ...runs.map(r => number(r, 'tokens_per_s', digits))],
    ['step', ...runs.map(r => r.sizes && r.summary && r.summary.tokens_per_s ? time(r.sizes.tokens / r.summary.tokens_per_s * 1e9) : '–')],
    ['communication hidden', ...runs.map(r => number(r, 'hidden_share', percent))],
    ['loss', ...runs.map(r => number(r, 'loss', x => x.toFixed(4)))],
    ['memory planned, rank 0', ...runs.map(r => number(r, 'slab_planned_bytes', bytes))]]));
}
addEventListener('DOMContentLoaded', build);
