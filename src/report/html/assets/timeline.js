// All ranks and streams over one step.

class Timeline {
  constructor(run) {
    this.run = run;
    this.lanes = [];
    let y = RULER + 6;
    const wide = run.trace.ranks.length <= 8;
    for (const rank of run.trace.ranks) {
      const first = this.lanes.length;
      rank.streams.forEach((s, k) => {
        if (!s.n && k) return;
        const h = wide ? (k ? 14 : 20) : k ? 7 : 11;
        this.lanes.push({s, rank, y, h, first: this.lanes.length === first});
        y += h + (wide ? 2 : 1);
        if (!k) y += wide ? 5 : 4; // room for the strip of exposed communication
      });
      y += wide ? 12 : 5;
    }
    this.full = y;
    this.view = new TimeView(this, {name: 'Timeline of the step, by rank and stream', end: run.trace.end, left: innerWidth < 600 ? 46 : 96});
    this.layerButton = el('button', {hidden: true, onclick: () => this.onlayer(this.view.item)}, 'Show its layer');
    this.view.tools.append(this.layerButton);
    this.node = el('div', {}, legend([['c-f', 'forward'], ['c-b', 'backward: input gradient'], ['c-w', 'backward: weight gradient'],
      ['c-o', 'optimizer'], ['c-local', 'communication inside a node'], ['c-cross', 'between nodes (lower edge: its strand)'],
      ['p-exposed', 'strip: communication exposed']]), this.view.node);
  }
  height() { return this.full; }
  item(lane, i) {
    const {s, rank} = lane;
    return i < 0 ? null : {lane, s, rank, i, t0: s.start[i], t1: s.end[i]};
  }
  hit(x, y) {
    if (x < this.view.left) return null;
    const lane = this.lanes.find(l => y >= l.y - 1 && y <= l.y + l.h + 1);
    return lane ? this.item(lane, lane.s.at(this.view.time(x), 3 * (this.view.t1 - this.view.t0) / this.view.w)) : null;
  }
  about({s, rank, i}) { return {title: title(s, i), rows: facts(rank, s, i)}; }
  move(item, dx, dy) {
    if (!item) {
      const lane = this.lanes[0];
      return this.item(lane, Math.min(lane.s.from(this.view.t0), lane.s.n - 1));
    }
    if (dx) return this.item(item.lane, clamp(item.i + dx, 0, item.s.n - 1));
    const lane = this.lanes[this.lanes.indexOf(item.lane) + dy];
    return lane && lane.s.n ? this.item(lane, clamp(lane.s.from(item.t0), 0, lane.s.n - 1)) : null;
  }
  selected(item) { this.layerButton.hidden = !item || item.s.layer[item.i] < 0; }

  draw(g) {
    for (const lane of this.lanes) {
      const y = lane.y - g.top;
      if (lane.first) this.drawRank(g, lane, y);
      if (y > g.h || y + lane.h < 0) continue;
      this.drawStream(g, lane, y);
    }
    for (const [item, strong] of [[g.hover, false], [g.item, true]])
      if (item && item.t1 >= g.t0 && item.t0 <= g.t1) {
        const [x, w] = barOf(g, item.t0, item.t1);
        outline(g, x, item.lane.y - g.top, Math.max(w, 1), item.lane.h, strong);
      }
  }
  drawRank(g, {rank, h}, y) {
    const {ctx, c} = g;
    ctx.fillStyle = c.fg;
    ctx.textAlign = 'left';
    ctx.fillText((g.left < 60 ? 'r' : 'rank ') + rank.rank, 6, y + h / 2);
    drawLane(g, rank.states, y + h + 1, 3, [null, null, c.exposed, null]);
  }
  drawStream(g, {s, y: top, h}, y) {
    const {ctx, c} = g, phases = phaseColours(), link = [null, c.local, c.cross][s.stream];
    ctx.fillStyle = c.panel;
    ctx.fillRect(g.left, y, g.w - g.left, h);
    if (g.left > 60 && s.stream) {
      ctx.fillStyle = c.muted;
      ctx.textAlign = 'right';
      if (h > 8) ctx.fillText(streamNames[s.stream], g.left - 6, y + h / 2);
      ctx.textAlign = 'left';
    }
    drawLane(g, s, y, h, link ? [link, link, link, link] : phases, (i, x, w, colour) => {
      if (link && h > 6) { ctx.fillStyle = phases[s.cls[i]]; ctx.fillRect(x, y + h - 3, w > 3 ? w - 0.5 : w, 3); }
      if (h > 10) barText(ctx, s.kind[i].name + (s.mb[i] >= 0 ? ' ' + s.mb[i] : ''), x, y + (link ? h / 2 - 1 : h / 2 + 0.5), w, inkOn(colour));
    });
  }
}
