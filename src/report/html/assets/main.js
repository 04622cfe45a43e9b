// The page from the data.

function section(id, name, intro, ...content) {
  return el('section', {id, 'aria-labelledby': id + '-h'}, el('h2', {id: id + '-h'}, name), intro && el('p', {}, intro), content);
}
const stepNs = r => r.summary && r.summary.tokens_per_s > 0 && r.sizes ? r.sizes.tokens / r.summary.tokens_per_s * 1e9 : null;

function tiles(run) {
  const s = run.summary || {}, step = stepNs(run), used = s.slab_peak_bytes;
  const tile = (name, value, note) => el('div', {}, el('dt', {}, name), el('dd', {}, value, el('small', {}, note)));
  return el('dl', {class: 'tiles'},
    s.tokens_per_s > 0 && tile('Speed', digits(s.tokens_per_s) + ' tok/s', s.simulated ? 'simulated' : 'median over steps'),
    step && tile('Step', time(step), run.sizes.tokens.toLocaleString('en') + ' tokens'),
    s.hidden_share != null && tile('Hidden', percent(s.hidden_share), s.simulated ? 'of communication, mean over all ranks' : 'of rank 0’s communication'),
    s.loss != null && tile('Loss', s.loss.toFixed(4), s.val_loss != null ? 'validation ' + s.val_loss.toFixed(4) : 'of the last step'),
    used && tile('Memory', bytes(s.slab_planned_bytes || used), s.simulated ? 'most of any rank' : used === s.slab_planned_bytes ? 'planned and used, rank 0' : `planned, rank 0; ${bytes(used)} used`));
}

const howToTrace = run => absent('No trace in the run folder. ', code('dhelix train JOB --set trace.step=5'), ' writes that step of every rank; then ', code('dhelix report ' + run.name), '.');

function timelinePart(run, rows) {
  const t = run.trace, step = run.sizes && run.sizes.traced, {view} = rows;
  const button = el('button', {hidden: true}, 'Show its layer');
  view.tools.append(button);
  view.onselect = item => { button.hidden = !item || item.row.stream.layer[item.i] < 0; };
  button.addEventListener('click', () => run.layerView.find(view.item.row, view.item.i));
  return [el('p', {class: 'said'}, `${step ? 'Step ' + step : 'A step'}: ${sum(t.ranks.flatMap(r => r.streams.map(s => s.n))).toLocaleString('en')} instructions of ${t.ranks.length} ranks in ${time(t.end)}.` +
    (t.files > t.ranks.length ? ` There are traces of ${t.files} ranks; --ranks shows more.` : '') + (t.one_clock ? '' : ' The ranks have no common clock: each begins at 0.')),
  legend([['c-f', 'forward'], ['c-b', 'backward: input gradient'], ['c-w', 'backward: weight gradient'], ['c-o', 'optimizer'], ['c-local', 'communication inside a node'],
    ['c-cross', 'between nodes'], ['p-exposed', 'strip below: communication exposed']], 'lower edge of communication: whose it is'), rows.node,
  tableBelow('Operators of the step', () => operators(t)), tableBelow('Overlapped and exposed, by rank', () => byRank(t))];
}

// Of a fact of the job, what came of it: the schedule a strategy takes, the nodes of a simulated cluster.
function factOf(run, name, said) {
  const s = run.summary || {};
  if (name === 'schedule' && run.plan) return run.plan.name;
  if (name === 'ranks' && s.simulated && s.nodes) return `${run.sizes.ranks} on ${s.nodes} ${s.nodes === 1 ? 'node' : 'nodes'} of ${s.costs}, simulated`;
  return said;
}

const tableSection = run => section('table', 'Table', `A training step of ${run.table.model} on ${run.table.cluster ? 'cluster ' + run.table.cluster : 'this machine'}, simulated with each value: strong is best. *: needs more memory than a device has; –: refused, the reason below.`, tablePart(run.table));
const isTable = run => run.table && !run.facts && !run.summary; // and nothing else

// Everything that belongs to one run.
function runSections(run) {
  if (isTable(run)) return [tableSection(run)];
  const rows = run.trace && timelineView(run), layer = run.layerView = run.trace && new LayerView(run);
  return [
    section('timeline', 'Timeline', 'Every instruction of every rank, by stream. A stream runs its instructions in order; what stands above each other ran at once.', rows ? timelinePart(run, rows) : howToTrace(run)),
    section('layer', 'One layer, two strands', layer && (layer.pairs.length ? 'A layer’s forward beside the backward of another micro-batch that ran with it. Between them the rank: strong where communication ran beside it, red where nothing was computed.'
      : 'No forward ran beside a backward: this run has one strand. Strategies of two strands (dhelix list strategies) run them together. Here a forward and its own backward.'), layer ? layer.node : howToTrace(run)),
    section('schedule', 'Pipeline schedule', 'Slots of every pipeline stage over time; numbers are micro-batches.' + (run.plan ? ` ${run.plan.name}, virtual stages: ${run.plan.stages}.` : ''),
      run.trace || run.plan ? schedulePart(run) : absent('Neither a trace nor a schedule in the run folder. ', run.plan_error || '')),
    section('memory', 'Memory over the step', 'Bytes of a rank’s slab in use: what stays, and above it activations and scratch as they lived in the traced step. Moves with the timeline.', rows ? memoryPart(run, rows.view) : howToTrace(run)),
    ...run.oef ? [section('oef', 'Overlap effectiveness', 'How much of the shorter of two operators disappears when they run together: 1 all of it, 0 nothing, below 0 both lose. Rows: forward; columns: backward.',
      heatMap(run.oef))] : [],
    ...run.table ? [tableSection(run)] : [],
  ];
}

// What differs between the runs, and what came out, beside that of the run they are compared with.
function compare(runs, base) {
  const fact = (r, label) => { const f = (r.facts || []).find(f => f[0] === label); return f ? factOf(r, ...f) : '–'; };
  const differing = [...new Set(runs.flatMap(r => (r.facts || []).map(f => f[0])))].filter(l => new Set(runs.map(r => fact(r, l))).size > 1);
  const value = (r, key) => r.summary && r.summary[key] != null ? r.summary[key] : null;
  const number = (key, format, versus) => runs.map(r => value(r, key) == null ? '–' : format(value(r, key)) +
    (r !== base && versus && value(base, key) ? ` (${versus(value(r, key), value(base, key))})` : ''));
  const signed = (x, text) => (x < 0 ? '−' : '+') + text;
  const part = (x, first) => signed(x - first, percent(Math.abs(x / first - 1)));
  const points = (x, first) => signed(x - first, (100 * Math.abs(x - first)).toFixed(1) + ' points');
  const differs = (x, first) => x === first ? 'the same' : signed(x - first, Math.abs(x - first).toPrecision(2));
  const speedUp = r => value(r, 'tokens_per_s') && value(base, 'tokens_per_s') && r !== base ? (r.summary.tokens_per_s / base.summary.tokens_per_s).toFixed(2) + ' times' : '–';
  return section('compare', 'Side by side', `Compared with ${base.label}; dhelix report --baseline RUN takes another.`, table(['', ...runs.map(r => r.label)], [...differing.map(l => [l, ...runs.map(r => fact(r, l))]),
    ['tokens per second', ...number('tokens_per_s', digits)], [`speed-up over ${base.label}`, ...runs.map(speedUp)], ['step', ...runs.map(r => stepNs(r) ? time(stepNs(r)) : '–')],
    ['communication hidden', ...number('hidden_share', percent, points)], ['loss', ...number('loss', x => x.toFixed(4), differs)],
    ['memory planned, rank 0', ...number('slab_planned_bytes', bytes, part)]]));
}

// The timelines of all runs, one below the other on one axis.
function timelines(runs) {
  const traced = runs.filter(r => r.trace), end = Math.max(...traced.map(r => r.trace.end));
  const views = traced.map(r => timelineView(r, end));
  for (const v of views) v.view.partners = views.filter(other => other !== v).map(other => other.view);
  return section('timelines', 'Timelines side by side', 'The traced step of each run on one axis; they move together. Colours as below.', views.length ? views.map((v, i) => [el('h3', {}, traced[i].label), v.node]) : howToTrace(runs[0]));
}

// Over which steps the bars of "where the time went" are means.
function meanOver(runs) {
  const simulated = runs.filter(r => r.summary && r.summary.simulated).length;
  return (simulated === runs.length ? 'The simulated step, mean over all ranks' : 'Mean over the steps but the first, on rank 0' + (simulated ? ' (where simulated, of the one step over all ranks)' : '')) + '; the whole bar is the step.';
}

function build() {
  const toggle = themeButton(), data = readData(), {runs} = data, many = runs.length > 1, head = el('div'), box = el('div');
  const show = run => {
    head.replaceChildren(tiles(run), el('dl', {class: 'facts'}, (run.facts || []).map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, factOf(run, k, v))))));
    box.replaceChildren(...run.sections = run.sections || runSections(run));
  };
  const choice = el('select', {onchange: () => show(runs[choice.selectedIndex])}, runs.map(r => el('option', {}, r.label)));
  const plain = runs.every(isTable), some = runs.some(r => r.table), shown = {time: 'Time', training: 'Training', timeline: 'Timeline', layer: 'Layer', schedule: 'Schedule', memory: 'Memory', ...runs.every(r => r.oef) && {oef: 'Overlap'}};
  const links = plain ? {table: 'Table'} : some ? {...shown, table: 'Table'} : shown;
  document.title = runs.map(r => r.label).join(', ') + ' · dhelix report';
  document.getElementById('top').append(el('div', {class: 'bar'}, el('div', {}, el('p', {class: 'kicker'}, 'dhelix report'), el('h1', {}, many ? `${runs.length} runs` : runs[0].name)), toggle));
  document.getElementById('page').append(...[
    el('nav', {'aria-label': 'Sections'}, Object.keys(links).map(id => el('a', {href: '#' + id}, links[id]))),
    ...plain ? [!many && head] : [many ? compare(runs, runs[data.baseline]) : head, keyHelp(),
      section('time', 'Where the time of a step went', meanOver(runs), whereTimeWent(runs)),
      section('training', 'Training', null, trainingPart(runs)), many && timelines(runs)], many && section('run', 'One run', null, el('div', {class: 'tools'}, el('label', {}, 'Run', choice)), head), box,
    el('footer', {}, `Written by dhelix ${data.version} from ${runs.map(r => r.name).join(', ')}. This file is complete: it loads nothing.`)].filter(Boolean));
  show(runs[0]);
}
addEventListener('DOMContentLoaded', build);
