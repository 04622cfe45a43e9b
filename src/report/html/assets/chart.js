// Quantities over training steps: lines of one or several runs.

// Runs by hue and dash.
const runLook = k => ({colour: [palette.f, palette.b, palette.local, palette.cross, palette.w, palette.fg][k % 6], dash: [[], [6, 3], [2, 3], [8, 3, 2, 3]][(k / 6 | 0) % 4]});

class LineChart {
  // series: [{label, index, x: [], y: [], points: bool}]
  constructor(name, series, fromZero) {
    Object.assign(this, {name, series, format: digits, at: -1});
    this.canvas = el('canvas', {tabindex: 0, role: 'application', 'aria-roledescription': 'line chart', 'aria-label': `${name}; arrow keys read values`});
    this.said = el('p', {class: 'said', 'aria-live': 'polite'});
    this.plot = el('div', {class: 'plot'}, this.canvas);
    this.node = el('figure', {}, el('h3', {}, name), this.plot, this.said);
    this.steps = [...new Set(series.flatMap(s => s.x))].sort((a, b) => a - b);
    const all = series.flatMap(s => s.y).filter(Number.isFinite).sort((a, b) => a - b);
    this.low = all[0];
    this.high = all[all.length - 1];
    if (fromZero) this.low = Math.min(this.low, 0);
    if (this.high === this.low) { this.high += Math.abs(this.high) * 0.05 || 1; this.low -= Math.abs(this.low) * 0.05; }
    this.canvas.addEventListener('pointermove', e => this.read(this.nearest(e.offsetX), e));
    this.canvas.addEventListener('pointerleave', () => { hideTip(); this.at = -1; this.draw(); });
    this.canvas.addEventListener('keydown', e => {
      const d = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9}[e.key];
      if (!d) return;
      e.preventDefault();
      this.read(clamp(this.at + d, 0, this.steps.length - 1));
    });
    new ResizeObserver(() => this.draw()).observe(this.plot);
    themeChanged.push(() => this.draw());
  }
  nearest(px) {
    const x = this.x0 + (px - 56) / (this.w - 68) * (this.x1 - this.x0), k = lowerBound(this.steps, x);
    return k > 0 && (k === this.steps.length || x - this.steps[k - 1] < this.steps[k] - x) ? k - 1 : k;
  }
  read(k, e) {
    this.at = k;
    const step = this.steps[k], rows = [];
    for (const s of this.series) {
      const i = lowerBound(s.x, step);
      if (s.x[i] === step && s.y[i] != null) rows.push([s.label, this.format(s.y[i])]);
    }
    this.said.textContent = e ? '' : `step ${step}: ` + rows.map(r => r.join(' ')).join(', ');
    if (e) showTip({title: 'step ' + step, rows}, e.clientX, e.clientY);
    this.draw();
  }
  draw() {
    const w = this.w = this.plot.clientWidth, h = 210, ratio = devicePixelRatio || 1;
    if (!w) return;
    this.canvas.width = w * ratio;
    this.canvas.height = h * ratio;
    this.canvas.style.height = h + 'px';
    const ctx = this.canvas.getContext('2d');
    ctx.scale(ratio, ratio);
    ctx.font = '11px ' + getComputedStyle(document.body).fontFamily;
    ctx.textBaseline = 'middle';
    [this.x0, this.x1] = [this.steps[0], Math.max(this.steps[this.steps.length - 1], this.steps[0] + 1)];
    const x = s => 56 + (s - this.x0) / (this.x1 - this.x0) * (w - 68), y = v => h - 24 - (v - this.low) / (this.high - this.low) * (h - 38);
    this.axes(ctx, w, h, x, y);
    this.series.forEach(s => this.line(ctx, s, x, y));
    if (this.at >= 0) {
      ctx.fillStyle = palette.focus;
      ctx.fillRect(x(this.steps[this.at]), 6, 1, h - 30);
    }
  }
  axes(ctx, w, h, x, y) {
    ctx.fillStyle = palette.muted;
    ctx.textAlign = 'right';
    const step = niceStep((this.high - this.low) / 4);
    for (let v = Math.ceil(this.low / step) * step; v <= this.high + step * 1e-6; v += step) {
      ctx.fillText(digits(Math.abs(v) < step * 1e-6 ? 0 : v), 50, y(v));
      ctx.globalAlpha = 0.3;
      ctx.fillRect(56, Math.round(y(v)), w - 68, 1);
      ctx.globalAlpha = 1;
    }
    ctx.textAlign = 'center';
    const xs = Math.max(niceStep((this.x1 - this.x0) / Math.max(w / 110, 1)), 1);
    for (let s = Math.ceil(this.x0 / xs) * xs; s <= this.x1; s += xs) ctx.fillText(s.toLocaleString('en'), clamp(x(s), 64, w - 20), h - 10);
  }
  line(ctx, s, x, y) {
    const look = runLook(s.index);
    ctx.strokeStyle = ctx.fillStyle = s.points ? palette.fg : look.colour;
    if (s.points) ctx.fillStyle = look.colour;
    ctx.setLineDash(look.dash);
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    s.x.forEach((step, i) => {
      if (s.y[i] == null) return;
      if (s.points) { ctx.moveTo(x(step) + 4, y(s.y[i])); ctx.arc(x(step), y(s.y[i]), 4, 0, 7); } else ctx.lineTo(x(step), y(s.y[i]));
    });
    if (s.points) { ctx.setLineDash([]); ctx.fill(); }
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.lineWidth = 1;
  }
}

const quantities = [['loss', 'Loss'], ['lr', 'Learning rate'], ['grad_norm', 'Gradient norm'], ['tokens_per_s', 'Tokens per second'], ['aux_loss', 'Load-balancing loss']];

function trainingCharts(runs) {
  const made = quantities.map(([key, name]) => {
    const series = runs.filter(r => r.metrics && r.metrics[key]).flatMap(r => [
      {label: runs.length > 1 ? r.label : name.toLowerCase(), index: r.index, x: r.metrics.step, y: r.metrics[key]},
      key === 'loss' && r.metrics.val.length && {label: runs.length > 1 ? r.label + ', validation' : 'validation', index: r.index, points: true, x: r.metrics.val.map(v => v[0]), y: r.metrics.val.map(v => v[1])},
    ].filter(Boolean));
    return series.length && new LineChart(name + (key === 'loss' ? ' (circles: validation)' : ''), series, !key.includes('loss'));
  }).filter(Boolean);
  if (made[0]) made[0].node.className = 'wide';
  return el('div', {class: 'grid'}, made.map(c => c.node));
}
function runLegend(runs) {
  return runs.length > 1 && el('ul', {class: 'legend'}, runs.map(r => {
    const swatch = el('i', {}), paint = () => swatch.style.background = runLook(r.index).colour;
    paint();
    themeChanged.push(paint);
    return el('li', {}, swatch, r.label);
  }));
}
