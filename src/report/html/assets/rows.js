// Rows of bars over time: the timeline, a layer's strands, the pipeline schedule. A row is
//   {label, h, seq, colours: () => [colour by class], about: i => ..., and where wanted
//    text: i => '', centred, edge: i => colour of its lower edge, ghost: seq drawn faintly,
//    strip: [seq, colours] below it, gap: space before it, plain: nothing to select}
class Rows {
  constructor(name, rows, options) {
    let y = RULER + 4;
    for (const row of rows) {
      row.y = y += row.gap || 0;
      y += row.h + (row.strip ? 5 : 2);
    }
    this.full = y + 5;
    this.rows = rows;
    this.view = new TimeView(this, name, options);
    this.node = this.view.node;
  }
  height() { return this.full; }
  foot({row}) { return row.y + row.h; }
  // Labels are never cut.
  labelRoom() {
    const ctx = document.createElement('canvas').getContext('2d');
    ctx.font = canvasFont();
    return Math.ceil(Math.max(...this.rows.map(r => r.label ? ctx.measureText(r.label).width : 0))) + 12;
  }
  item(row, i) { return row && row.seq.n && i >= 0 ? {row, i, t0: row.seq.start[i], t1: row.seq.end[i]} : null; }
  hit(t, y, slack) {
    const row = this.rows.find(r => !r.plain && y >= r.y - 1 && y <= r.y + r.h + 1);
    return row ? this.item(row, row.seq.at(t, slack)) : null;
  }
  about({row, i}) { return row.about(i); }
  move(item, dx, dy) {
    const rows = this.rows.filter(r => !r.plain && r.seq.n), near = (row, t) => this.item(row, clamp(row.seq.from(t), 0, row.seq.n - 1));
    if (!item) return near(rows[0], this.view.t0);
    if (dx) return this.item(item.row, clamp(item.i + dx, 0, item.row.seq.n - 1));
    const row = rows[rows.indexOf(item.row) + dy];
    return row ? near(row, item.t0) : null;
  }
  draw(g) {
    for (const row of this.rows) if (row.y < g.bottom && row.y + row.h + 6 > g.top) this.drawRow(g, row);
    for (const item of [g.hover, g.item]) if (item) {
      const [x, w] = barOf(g, item.t0, item.t1);
      g.ctx.strokeStyle = palette.focus;
      g.ctx.lineWidth = item === g.item ? 2 : 1;
      if (w > -2) g.ctx.strokeRect(x - 0.5, item.row.y - 0.5, Math.max(w, 1) + 0.5, item.row.h + 1);
    }
  }
  drawRow(g, row) {
    const {ctx} = g, {y, h} = row, middle = y + h / 2 + 0.5;
    ctx.textAlign = 'right';
    ctx.fillStyle = row.gap ? palette.fg : palette.muted;
    if (row.label && h > 8) ctx.fillText(row.label, g.left - 7, middle);
    ctx.fillStyle = palette.panel;
    if (!row.plain) ctx.fillRect(g.left, y, g.w - g.left, h);
    if (row.ghost) drawLane(g, row.ghost, y + h / 2 - 3, 6, Array(9).fill(palette.rule));
    if (row.strip) drawLane(g, row.strip[0], y + h + 1, 3, row.strip[1]());
    drawLane(g, row.seq, y, h, row.colours(), (i, x, w, colour) => {
      if (row.edge && h > 6) {
        ctx.fillStyle = row.edge(i);
        ctx.fillRect(x, y + h - 3, w, 3);
      }
      if (row.text && h > 9) barText(ctx, row.text(i), x, row.edge ? middle - 1 : middle, w, inkOn(colour), row.centred);
    });
  }
}

// The visible part of [t0, t1] as x and width.
function barOf(g, t0, t1) {
  const x = Math.max(g.x(t0), g.left);
  return [x, Math.min(g.x(t1), g.w) - x];
}
function barText(ctx, text, x, y, room, colour, centred) {
  if (room < 7) return;
  const width = ctx.measureText(text).width;
  ctx.textAlign = centred ? 'center' : 'left';
  ctx.fillStyle = colour;
  if (width <= room - (centred ? 2 : 6)) return ctx.fillText(text, centred ? x + room / 2 : x + 3, y);
  const fits = Math.floor(text.length * (room - 8) / width);
  if (fits > 2 && !centred) ctx.fillText(text.slice(0, fits - 1) + '…', x + 3, y);
}

// A sequence in a lane. What is narrower than a pixel is drawn a pixel at a time, in the
// colour of the class that took most of it, as solid as the pixel is full.
function drawLane(g, s, y, h, colours, each) {
  const {ctx} = g;
  for (let i = s.from(g.t0); i < s.n && s.start[i] < g.t1;) {
    const [x, w] = barOf(g, s.start[i], s.end[i]), colour = colours[s.cls[i]];
    if (w >= 1.2) {
      if (colour) {
        const inner = w > 4 ? w - 0.6 : w;
        ctx.fillStyle = colour;
        ctx.fillRect(x, y, inner, h);
        if (each) each(i, x, inner, colour);
      }
      i++;
      continue;
    }
    const left = Math.floor(x), t0 = g.t0 + (left - g.left) * g.px, t1 = t0 + g.px, k = s.until(t1, i);
    const [most, spent] = s.main(i, k, t0, t1, colours);
    if (spent > 0) {
      ctx.globalAlpha = clamp(spent / g.px, 0.25, 1);
      ctx.fillStyle = colours[most];
      ctx.fillRect(left, y, 1, h);
      ctx.globalAlpha = 1;
    }
    i = Math.max(i + 1, s.end[k - 1] > t1 ? k - 1 : k); // one that goes on beyond the pixel comes next
  }
}
