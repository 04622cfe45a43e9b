// A drawing over time: zoom, pan, hover, keyboard. What is drawn comes from its owner:
//   draw(g)            on g.ctx, between g.left and g.w, times by g.x(t), colours g.c
//   hit(x, y)          the item there, or null; items have t0, t1 and are compared by key
//   about(item)        {title, rows: [[label, text]]}
//   move(item, dx, dy) the next item to the right, below, ...; item null: a first one
//   height()           of the whole drawing; more than fits is scrolled
class TimeView {
  constructor(owner, {name, end, left = 0, format = time, keys = true}) {
    Object.assign(this, {owner, end, left, format, t0: 0, t1: end, item: null, hover: null, pointers: new Map(), partners: []});
    this.canvas = el('canvas', {tabindex: 0, role: 'application', 'aria-label': name, 'aria-roledescription': 'timeline'});
    this.canvas.view = this; // for who looks at the page from the console
    this.room = el('div', {});
    this.plot = el('div', {class: 'plot'}, this.canvas, this.room);
    this.said = el('p', {class: 'said', 'aria-live': 'polite'});
    const button = (text, label, f) => el('button', {onclick: f, 'aria-label': label, title: label}, text);
    this.tools = el('div', {class: 'tools'}, button('−', 'zoom out', () => this.zoom(2)),
      button('+', 'zoom in', () => this.zoom(0.5)), button('All', 'show all', () => this.show(0, this.end)));
    this.node = el('div', {}, this.tools, this.plot, this.said, keys && keyHelp());
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.plot);
    themeChanged.push(() => this.redraw());
  }

  // ---- what is shown
  resize() {
    const full = this.owner.height(), w = this.plot.clientWidth, h = Math.min(full, this.plot.clientHeight || full);
    const ratio = devicePixelRatio || 1;
    const seen = Math.min(full, parseFloat(getComputedStyle(this.plot).maxHeight) || full);
    this.w = w;
    this.h = Math.max(Math.min(h, seen), Math.min(full, seen));
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(this.h * ratio);
    this.canvas.style.height = this.h + 'px';
    this.room.style.height = full - this.h + 'px';
    this.redraw();
  }
  redraw() {
    if (!this.asked) this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }
  draw() {
    if (!this.w) return;
    const ctx = this.canvas.getContext('2d'), ratio = this.canvas.width / this.w;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.bg;
    ctx.fillRect(0, 0, this.w, this.h);
    ctx.font = '11px ' + getComputedStyle(document.body).fontFamily;
    ctx.textBaseline = 'middle';
    const px = (this.t1 - this.t0) / (this.w - this.left);
    const g = {ctx, w: this.w, h: this.h, left: this.left, t0: this.t0, t1: this.t1, px, c: palette,
      top: this.plot.scrollTop, x: t => this.left + (t - this.t0) / px, item: this.item, hover: this.hover};
    this.owner.draw(g);
    this.ruler(g);
  }
  // Times along the top.
  ruler(g) {
    const {ctx, c} = g;
    ctx.fillStyle = c.bg;
    ctx.fillRect(0, 0, g.w, RULER);
    ctx.fillStyle = c.muted;
    ctx.strokeStyle = c.rule;
    ctx.textAlign = 'left';
    const step = niceStep((g.t1 - g.t0) / Math.max((g.w - g.left) / 90, 1));
    for (let t = Math.ceil(g.t0 / step) * step; t <= g.t1; t += step) {
      const x = Math.round(g.x(t)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, RULER - 6);
      ctx.lineTo(x, RULER);
      ctx.stroke();
      if (x < g.w - 36) ctx.fillText(this.format(t), x + 3, 9);
    }
    ctx.beginPath();
    ctx.moveTo(0, RULER - 0.5);
    ctx.lineTo(g.w, RULER - 0.5);
    ctx.stroke();
  }
  time(x) { return this.t0 + (x - this.left) / (this.w - this.left) * (this.t1 - this.t0); }

  // Views of the same time move together.
  show(t0, t1, told) {
    const span = clamp(t1 - t0, Math.min(this.end, this.end / 1e6 + 10), this.end);
    this.t0 = clamp(t0, 0, this.end - span);
    this.t1 = this.t0 + span;
    this.redraw();
    if (!told) this.partners.forEach(p => p.show(t0, t1, true));
  }
  zoom(factor, at = this.item ? clamp((this.item.t0 + this.item.t1) / 2, this.t0, this.t1) : (this.t0 + this.t1) / 2) {
    this.show(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }
  pan(part) {
    const d = (this.t1 - this.t0) * part;
    this.show(this.t0 + d, this.t1 + d);
  }
  select(item) {
    this.item = item;
    const about = item && this.owner.about(item);
    this.said.textContent = about ? about.title + ' · ' + about.rows.map(r => r.join(' ')).join(' · ') : '';
    if (item && (item.t1 < this.t0 || item.t0 > this.t1)) {
      const half = (this.t1 - this.t0) / 2, mid = (item.t0 + item.t1) / 2;
      this.show(mid - half, mid + half);
    }
    if (this.owner.selected) this.owner.selected(item, this.said);
    this.redraw();
  }

  // ---- pointer and keyboard
  listen() {
    const on = (type, f) => this.canvas.addEventListener(type, f.bind(this), {passive: false});
    on('wheel', this.onwheel);
    on('pointerdown', this.ondown);
    on('pointermove', this.onmove);
    on('pointerup', this.onup);
    on('pointercancel', this.onup);
    on('pointerleave', () => { this.hover = null; hideTip(); this.redraw(); });
    on('dblclick', e => this.zoom(0.25, this.time(e.offsetX)));
    on('keydown', this.onkey);
    on('blur', hideTip);
    this.plot.addEventListener('scroll', () => this.redraw());
  }
  // The page scrolls as ever until the drawing has the focus, or Ctrl (a pinch) says zoom.
  onwheel(e) {
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) {
      this.pan((e.deltaX || e.deltaY) / this.w);
    } else if (e.ctrlKey || e.metaKey || document.activeElement === this.canvas) {
      this.zoom(Math.exp(clamp(e.deltaY, -60, 60) * (e.ctrlKey ? 0.01 : 0.004)), this.time(e.offsetX));
    } else return;
    e.preventDefault();
  }
  ondown(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, e.offsetX);
    this.grip = {t0: this.t0, t1: this.t1, moved: false, top: this.plot.scrollTop, y: e.clientY, from: new Map(this.pointers)};
  }
  onmove(e) {
    if (!this.pointers.has(e.pointerId)) return this.point(e);
    this.pointers.set(e.pointerId, e.offsetX);
    const {grip} = this, ids = [...this.pointers.keys()], span = grip.t1 - grip.t0, room = this.w - this.left;
    const was = ids.map(id => grip.from.get(id)), now = ids.map(id => this.pointers.get(id));
    if (Math.abs(now[0] - was[0]) > 3 || ids.length > 1) grip.moved = true;
    if (!grip.moved) return;
    hideTip();
    if (ids.length > 1) {
      const scale = Math.abs(was[0] - was[1]) / Math.max(Math.abs(now[0] - now[1]), 8);
      const at = grip.t0 + (sum(was) / 2 - this.left) / room * span, mid = (sum(now) / 2 - this.left) / room;
      this.show(at - mid * span * scale, at + (1 - mid) * span * scale);
    } else {
      const d = (was[0] - now[0]) / room * span;
      this.show(grip.t0 + d, grip.t1 + d);
      if (e.pointerType === 'mouse') this.plot.scrollTop = grip.top + grip.y - e.clientY;
    }
  }
  onup(e) {
    const moved = this.grip && this.grip.moved;
    this.pointers.delete(e.pointerId);
    if (this.pointers.size) this.grip = {...this.grip, t0: this.t0, t1: this.t1, from: new Map(this.pointers)};
    else if (!moved && e.type === 'pointerup') this.select(this.owner.hit(e.offsetX, e.offsetY + this.plot.scrollTop));
  }
  point(e) {
    this.hover = this.owner.hit(e.offsetX, e.offsetY + this.plot.scrollTop);
    if (this.hover) showTip(this.owner.about(this.hover), e.clientX, e.clientY); else hideTip();
    this.redraw();
  }
  onkey(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[e.key];
    if (step && e.shiftKey) this.pan(step[0] / 4);
    else if (step) this.select(this.owner.move(this.item, ...step) || this.item);
    else if ('+=w'.includes(e.key)) this.zoom(0.5);
    else if ('-s'.includes(e.key)) this.zoom(2);
    else if (e.key === 'a') this.pan(-0.25);
    else if (e.key === 'd') this.pan(0.25);
    else if (e.key === 'Home' || e.key === '0') this.show(0, this.end);
    else if (e.key === 'Enter' && this.item) this.show(this.item.t0 - (this.item.t1 - this.item.t0), 2 * this.item.t1 - this.item.t0);
    else if (e.key === 'Escape' && this.item) this.select(null);
    else return;
    e.preventDefault();
  }
}

const RULER = 22;
function niceStep(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * [1, 2, 5, 10].find(k => k * power >= x * 0.999);
}
function keyHelp() {
  const k = text => el('kbd', {}, text);
  return el('p', {class: 'keys'}, 'Click or focus, then wheel or ', k('+'), ' ', k('−'), ' zoom, drag or ', k('Shift'), ' ', k('←'), ' ', k('→'),
    ' move, arrows walk, ', k('Enter'), ' zooms in on one, ', k('0'), ' shows all.');
}

// Text in a bar, where it fits.
function barText(ctx, text, x, y, room, colour) {
  if (room < 14) return;
  const width = ctx.measureText(text).width;
  if (width > room - 6) {
    const fits = Math.floor(text.length * (room - 8) / width);
    if (fits < 3) return;
    text = text.slice(0, fits - 1) + '…';
  }
  ctx.fillStyle = colour;
  ctx.fillText(text, x + 3, y);
}
// The visible part of [t0, t1] as x and width.
function barOf(g, t0, t1) {
  const x = Math.max(g.x(t0), g.left), end = Math.min(g.x(t1), g.w);
  return [x, end - x];
}
function outline(g, x, y, w, h, strong) {
  g.ctx.strokeStyle = g.c.focus;
  g.ctx.lineWidth = strong ? 2 : 1;
  g.ctx.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
  g.ctx.lineWidth = 1;
}

// A sequence in a lane. What is narrower than a pixel is drawn a pixel at a time, in the
// colour of the class that took most of it, as solid as the pixel is full.
function drawLane(g, s, y, h, colours, each) {
  const {ctx} = g;
  for (let i = s.from(g.t0); i < s.n && s.start[i] < g.t1;) {
    const [x, w] = barOf(g, s.start[i], s.end[i]);
    if (w >= 1.2) {
      const colour = colours[s.cls[i]];
      if (colour) {
        ctx.fillStyle = colour;
        ctx.fillRect(x, y, w > 3 ? w - 0.5 : w, h);
        if (each) each(i, x, w, colour);
      }
      i++;
      continue;
    }
    const left = Math.floor(x), t0 = g.t0 + (left - g.left) * g.px, t1 = t0 + g.px;
    const spent = s.sums.map((_, cls) => colours[cls] ? s.spent(cls, t0, t1) : 0);
    const most = spent.indexOf(Math.max(...spent));
    if (spent[most] > 0) {
      ctx.globalAlpha = clamp(sum(spent) / g.px, 0.15, 1);
      ctx.fillStyle = colours[most];
      ctx.fillRect(left, y, 1, h);
      ctx.globalAlpha = 1;
    }
    i = Math.max(i + 1, s.until(t1));
  }
}

function showTip({title, rows}, x, y) {
  const tip = document.getElementById('tip');
  tip.replaceChildren(el('b', {}, title), el('dl', {}, rows.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)])));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = clamp(x + 14, 4, Math.max(innerWidth - box.width - 4, 4)) + 'px';
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(y - box.height - 12, 4) : y + 18) + 'px';
}
function hideTip() { document.getElementById('tip').hidden = true; }
