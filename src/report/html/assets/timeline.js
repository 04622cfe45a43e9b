// All ranks and streams over one step.

// A stream's row, or that of some of its instructions: `of` maps to numbers in the stream.
function streamRow(rank, s, seq, of, more) {
  const edge = s.stream ? i => phaseColours()[seq.cls[i]] : null;
  return {seq, edge, colours: () => s.stream ? Array(4).fill(palette[s.engine]) : phaseColours(),
    about: i => ({title: title(s, of(i)), rows: facts(rank, s, of(i))}), text: i => s.kind[of(i)].name, rank, stream: s, of, ...more};
}

// end: where the axis ends, for runs that are compared.
function timelineView(run, end = run.trace.end) {
  const {ranks} = run.trace, roomy = ranks.length <= 8;
  const rows = ranks.flatMap(rank => rank.streams.filter(s => s.n || !s.stream).map(s => streamRow(rank, s, s, i => i, {
    label: s.stream ? s.name : 'rank ' + rank.rank, h: roomy ? (s.stream ? 14 : 20) : s.stream ? 7 : 11, gap: s.stream ? 0 : roomy ? 10 : 4,
    text: i => s.kind[i].name + (s.mb[i] >= 0 ? ' ' + s.mb[i] : ''),
    strip: s.stream ? null : [rank.states, () => [null, null, palette.exposed, null]]})));
  return new Rows('Timeline of the step, by rank and stream', rows, {end, left: 62});
}
